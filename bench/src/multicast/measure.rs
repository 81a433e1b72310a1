//! All measurements of one row to many, one after the other.

use channel::broadcast::Shape;
use millstream::cluster::Control;

use super::applications::{self, AppPoint};
use super::real::{Dynamic, MulticastPlan, Point, Time, Way, changing, point, scaled, sustained};
use super::slices::{self, SlicePoint};
use crate::BenchError;

/// How often the rates change, by each way in turns.
const RATE_RUNS: usize = 5;

/// All that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The sweeps.
    pub points: Vec<Point>,
    /// The rates that changed, in requests a second.
    pub rates: Vec<f64>,
    /// The runs of changing rates, several of each way.
    pub dynamic: Vec<Dynamic>,
    /// The sweeps of how rows are collected.
    pub slices: Vec<SlicePoint>,
    /// The whole applications.
    pub applications: Vec<AppPoint>,
}

/// Measures everything. Node 0 gets figures, the others none.
///
/// # Errors
/// The first failure; an instance that missed a request or has a wrong match.
pub fn run(plan: &MulticastPlan, control: &Control) -> Result<Option<Measured>, BenchError> {
    let mut points = vec![];
    for &instances in &plan.instances {
        for way in Way::ALL {
            points.extend(point(plan, way, instances, Time::Announced, control)?);
        }
    }
    let mut dynamic = vec![];
    let most = plan.instances.iter().max().copied().unwrap_or(1);
    let rates = scaled(&plan.rates, sustained(plan, most, control)?);
    for _ in 0..RATE_RUNS {
        for way in [Way::Adaptive, Way::Tree(Shape::Sequential)] {
            dynamic.extend(changing(plan, &rates, way, most, control)?);
        }
    }
    let middle = plan.instances.get(plan.instances.len() / 2).copied().unwrap_or(1);
    let slices = slices::run(plan, middle, control)?;
    let applications = applications::run(plan, control)?;
    let measured = Measured { points, rates, dynamic, slices, applications };
    Ok((control.rank() == 0).then_some(measured))
}
