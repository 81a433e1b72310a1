//! Lines over two axes, as SVG.

use super::page::escape;
use super::{Axis, FigureOrigin, Plot, ReportTable};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;
/// Marks on an axis, about.
const MARKS: f64 = 6.0;
/// Points up to which each is drawn as a dot as well.
const DOTS_MAX: usize = 24;

/// The values that an axis spans, and where they are drawn.
struct Scale {
    log: bool,
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let log = axis.log;
        let drawn = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (mut least, mut most) =
            drawn.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        if least > most {
            (least, most) = (1.0, 10.0);
        }
        if log {
            least = 10_f64.powf(least.log10().floor());
            most = 10_f64.powf(most.log10().ceil()).max(least * 10.0);
        } else {
            least = least.min(0.0);
            most = if most > least { most } else { least + 1.0 };
            let step = step(most - least);
            (least, most) = ((least / step).floor() * step, (most / step).ceil() * step);
        }
        Self { log, least, most, from, to }
    }

    /// Where a value is drawn, if it has a place.
    fn at(&self, value: f64) -> Option<f64> {
        let part = match self.log {
            true if value <= 0.0 => return None,
            true => (value / self.least).log10() / (self.most / self.least).log10(),
            false => (value - self.least) / (self.most - self.least),
        };
        Some(self.from + part * (self.to - self.from)).filter(|at| at.is_finite())
    }

    fn marks(&self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.least.log10().round() as i32, self.most.log10().round());
            return (first..=last as i32).map(|power| 10_f64.powi(power)).collect();
        }
        let step = step(self.most - self.least);
        let count = ((self.most - self.least) / step).round() as u32;
        (0..=count).map(|at| self.least + f64::from(at) * step).collect()
    }
}

/// 1, 2 or 5 of a power of ten, so that a span has about [`MARKS`] of it.
fn step(span: f64) -> f64 {
    let rough = span / MARKS;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= rough).unwrap_or(power)
}

/// A number with the prefix of its size.
pub(super) fn short(value: f64) -> String {
    let prefixes = [(1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")];
    let size = value.abs();
    let found = prefixes.into_iter().find(|(of, _)| size >= *of);
    let (of, prefix) = found.unwrap_or((1.0, ""));
    let scaled = value / of;
    let digits = match scaled.abs() {
        scaled if scaled >= 100.0 || scaled == scaled.trunc() => 0,
        scaled if scaled >= 1.0 => 1,
        scaled if scaled >= 0.01 => 3,
        _ => 6,
    };
    format!("{scaled:.digits$}{prefix}")
}

/// The drawing.
pub(super) fn svg(plot: &Plot) -> String {
    let points = || plot.series.iter().flat_map(|series| series.points.iter());
    let x = Scale::new(&plot.x, points().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let y = Scale::new(&plot.y, points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let mut body = axes(plot, &x, &y);
    for (at, series) in plot.series.iter().enumerate() {
        let place = |&(vx, vy): &(f64, f64)| Some((x.at(vx)?, y.at(vy)?, vx, vy));
        let places: Vec<_> = series.points.iter().filter_map(place).collect();
        let line: Vec<String> =
            places.iter().map(|(px, py, ..)| format!("{px:.1},{py:.1}")).collect();
        body += &format!(
            "<polyline fill=\"none\" {} points=\"{}\"><title>{}</title></polyline>\n",
            stroke(at, series.origin),
            line.join(" "),
            escape(&series.name)
        );
        if series.points.len() <= DOTS_MAX {
            for (px, py, vx, vy) in places {
                body += &format!(
                    "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.5\" fill=\"var(--c{})\">\
                     <title>{}: {}, {}</title></circle>\n",
                    at % 8,
                    escape(&series.name),
                    short(vx),
                    short(vy)
                );
            }
        }
    }
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n{body}</svg>\n",
        escape(&plot.title)
    )
}

fn axes(plot: &Plot, x: &Scale, y: &Scale) -> String {
    let mut out = String::new();
    let line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
             stroke=\"var(--line)\"/>\n"
        )
    };
    for (value, at) in y.marks().into_iter().filter_map(|value| Some((value, y.at(value)?))) {
        out += &line(LEFT, at, WIDTH - RIGHT, at);
        let (left, down) = (LEFT - 6.0, at + 4.0);
        out += &format!(
            "<text x=\"{left:.1}\" y=\"{down:.1}\" text-anchor=\"end\">{}</text>\n",
            short(value)
        );
    }
    let floor = HEIGHT - BOTTOM;
    for (value, at) in x.marks().into_iter().filter_map(|value| Some((value, x.at(value)?))) {
        out += &line(at, floor, at, floor + 5.0);
        let down = floor + 18.0;
        out += &format!(
            "<text x=\"{at:.1}\" y=\"{down:.1}\" text-anchor=\"middle\">{}</text>\n",
            short(value)
        );
    }
    let (middle, high) = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + floor) / 2.0);
    let [right, up] = [&plot.x.label, &plot.y.label].map(|label| escape(label));
    out += &format!(
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{right}</text>\n\
         <text transform=\"translate(14 {high:.1}) rotate(-90)\" text-anchor=\"middle\">{up}\
         </text>\n",
        HEIGHT - 8.0
    );
    out
}

fn stroke(at: usize, origin: FigureOrigin) -> String {
    let dashes = match origin {
        FigureOrigin::Measured => "",
        FigureOrigin::Simulated => " stroke-dasharray=\"6 4\"",
        FigureOrigin::Published => " stroke-dasharray=\"2 3\"",
    };
    format!("stroke=\"var(--c{})\" stroke-width=\"2\"{dashes}", at % 8)
}

/// A short piece of a line, for the key.
pub(super) fn sample(at: usize, origin: FigureOrigin) -> String {
    format!("<line x1=\"1\" y1=\"5\" x2=\"25\" y2=\"5\" {}/>", stroke(at, origin))
}

/// The points of all lines, by the axis to the right.
pub(super) fn numbers(plot: &Plot) -> ReportTable {
    let mut at: Vec<f64> =
        plot.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
    at.sort_by(f64::total_cmp);
    at.dedup();
    let row = |&x: &f64| {
        let value = |series: &super::Series| {
            let found = series.points.iter().find(|point| point.0 == x);
            found.map_or(String::new(), |point| short(point.1))
        };
        let mut cells = vec![short(x)];
        cells.extend(plot.series.iter().map(value));
        cells
    };
    let mut columns = vec![plot.x.label.clone()];
    columns.extend(plot.series.iter().map(|series| series.name.clone()));
    ReportTable { title: plot.y.label.clone(), columns, rows: at.iter().map(row).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_span_all_values() {
        let scale = |axis: &Axis, values: &[f64]| {
            let scale = Scale::new(axis, values.iter().copied(), 0.0, 100.0);
            assert!(
                values.iter().all(|&v| scale.at(v).is_some_and(|at| (0.0..=100.0).contains(&at)))
            );
            scale.marks()
        };
        assert_eq!(
            scale(&Axis::linear("x"), &[8.0, 480.0]),
            [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]
        );
        assert_eq!(
            scale(&Axis::linear("x"), &[0.0]),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        assert_eq!(scale(&Axis::log("x"), &[30.0, 2_000.0]), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(scale(&Axis::log("x"), &[]), [1.0, 10.0]);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 7.0, 1_234.0, 2.5e6, 480.0, 3.2e-3, 4e9].map(short);
        assert_eq!(shown, ["0", "7", "1.2 k", "2.5 M", "480", "0.003200", "4 G"]);
    }
}
