//! Task events of a compute cluster, in the shape of Google's 2011 trace: CM of S14. 64 bytes a
//! row. Jobs are skewed, as in the trace: few have most of the tasks.

use arrow::datatypes::{Float32Type, Int32Type, Int64Type};
use dataflow::error::ConnectorError;

use super::columns::{Timeline, numbers};
use super::random::Column as Random;
use super::{Key, Model};
use crate::options::OptionReader;

const JOBS: u64 = 10_000;
const TASKS_PER_JOB: u64 = 1_000;
const MACHINES: u64 = 12_500;

pub(super) fn model(
    options: OptionReader<'_>,
    seed: u64,
    timeline: Timeline,
) -> Result<Model, ConnectorError> {
    let job = Key::new(options, JOBS, "zipf")?;
    let jobs = Random::new(seed, "job_id");
    let below = |name: &'static str, bound: u64| {
        let random = Random::new(seed, name);
        move |row| random.below(row, bound)
    };
    let small = |name: &'static str, bound: u64| {
        let value = below(name, bound);
        numbers::<Int32Type>(name, move |row| value(row) as i32).of(bound)
    };
    let share = |name: &'static str| {
        let random = Random::new(seed, name);
        numbers::<Float32Type>(name, move |row| random.unit(row) as f32)
    };
    let count = job.count();
    let (task, machine) = (below("task_id", TASKS_PER_JOB), below("machine_id", MACHINES));
    Ok(Model::rows(vec![
        timeline.column("event_time", |row| row),
        numbers::<Int64Type>("job_id", move |row| job.draw(&jobs, row)).of(count),
        numbers::<Int64Type>("task_id", move |row| task(row) as i64).of(TASKS_PER_JOB),
        numbers::<Int64Type>("machine_id", move |row| machine(row) as i64).of(MACHINES),
        // 0 submit, 1 schedule, 2 evict, 3 fail, 4 finish, 5 kill, 6 lost, 7 and 8 updates.
        small("event_type", 9),
        small("user_id", 1_000),
        small("category", 4),
        small("priority", 12),
        share("cpu"),
        share("ram"),
        share("disk"),
        small("constraints", 2),
    ]))
}
