//! The order in which a chain looks up its builds, by what they let through.
//!
//! ```text
//! rows ─▶ stage, passes 60 % ─▶ stage, passes 4 % ─▶      36 of 100 rows more are looked up than
//! rows ─▶ stage, passes 4 % ─▶ stage, passes 60 % ─▶      in this order
//! ```
//!
//! Each stage counts the rows that came and the rows that it passed on. From time to time the
//! stages are ordered by the rows that they drop for what a lookup costs, as far as those that need
//! the build of another come behind it. The counts lose half of their weight then, so that the
//! order follows data that changes. No clock is read: the same rows in the same batches give the
//! same orders.

/// Batches until the order is looked at for the first time; the number doubles each time, up to the
/// second one.
const BATCHES_FIRST: u32 = 2;
const BATCHES_MAX: u32 = 64;

/// The least rows by which it is known what a stage lets through.
const ROWS_MIN: f64 = 64.0;

/// The part of the cost of the present order that another one may have at most to take its place.
const BETTER: f64 = 0.9;

/// The cost of a row that is passed on, beside that of the lookup.
const PASSED_COST: f64 = 1.0;

/// The order of the stages of a chain on one worker.
#[derive(Debug)]
pub(super) struct ProbeOrder {
    stages: Vec<StageRows>,
    order: Vec<usize>,
    /// Batches until the order is looked at, and until the next time after that.
    left: u32,
    interval: u32,
}

/// The rows of a stage.
#[derive(Debug)]
struct StageRows {
    /// The cost of looking up a row.
    cost: f64,
    /// The stages that it comes behind.
    needs: Vec<usize>,
    came: f64,
    passed: f64,
    /// The rows that are passed on for a row that came, if enough came.
    fraction: Option<f64>,
}

impl ProbeOrder {
    /// The order of the plan. By stage: the cost of looking up a row, and the stages that it comes
    /// behind.
    pub(super) fn new(stages: impl IntoIterator<Item = (f64, Vec<usize>)>) -> Self {
        let of = |(cost, needs)| StageRows { cost, needs, came: 0.0, passed: 0.0, fraction: None };
        let stages: Vec<StageRows> = stages.into_iter().map(of).collect();
        let order = (0..stages.len()).collect();
        Self { stages, order, left: BATCHES_FIRST, interval: BATCHES_FIRST }
    }

    /// The stages in their present order.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    /// Counts rows of a stage.
    pub(super) fn count(&mut self, stage: usize, came: usize, passed: usize) {
        let stage = &mut self.stages[stage];
        stage.came += came as f64;
        stage.passed += passed as f64;
    }

    /// A batch has been looked up; gives whether the order is another one now.
    pub(super) fn end_batch(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.interval = (self.interval * 2).min(BATCHES_MAX);
        self.left = self.interval;
        for stage in &mut self.stages {
            if stage.came >= ROWS_MIN {
                stage.fraction = Some(stage.passed / stage.came);
            }
            (stage.came, stage.passed) = (stage.came / 2.0, stage.passed / 2.0);
        }
        let best = self.best();
        let is_better = self.cost(&best) < BETTER * self.cost(&self.order);
        if is_better {
            self.order = best;
        }
        is_better
    }

    /// The stages by the rows that they drop for their cost. Of equal ones the first in the present
    /// order stays the first.
    fn best(&self) -> Vec<usize> {
        let mut best: Vec<usize> = vec![];
        while best.len() < self.order.len() {
            let may = |stage: &&usize| {
                let needs = &self.stages[**stage].needs;
                !best.contains(stage) && needs.iter().all(|needed| best.contains(needed))
            };
            let first = |one: usize, other: &usize| {
                if self.stages[*other].rank() > self.stages[one].rank() { *other } else { one }
            };
            let mut possible = self.order.iter().filter(may);
            let Some(&one) = possible.next() else { return self.order.clone() };
            let next = possible.fold(one, first);
            best.push(next);
        }
        best
    }

    /// The cost of a row that comes to the first stage of an order.
    fn cost(&self, order: &[usize]) -> f64 {
        let (mut rows, mut cost) = (1.0, 0.0);
        for &stage in order {
            let stage = &self.stages[stage];
            cost += rows * stage.cost();
            rows *= stage.passes();
        }
        cost
    }
}

impl StageRows {
    /// The rows that are passed on for a row that comes. Nothing is expected of a stage to which
    /// too few rows came.
    fn passes(&self) -> f64 {
        self.fraction.unwrap_or(1.0)
    }

    fn cost(&self) -> f64 {
        self.cost + self.passes() * PASSED_COST
    }

    /// The rows that it drops for its cost.
    fn rank(&self) -> f64 {
        (1.0 - self.passes()) / self.cost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks up batches of 1,000 rows, of which the stages pass on these parts, and gives whether
    /// the order changed.
    fn run(order: &mut ProbeOrder, batches: u32, parts: &[f64]) -> u32 {
        let mut changes = 0;
        for _ in 0..batches {
            let mut rows = 1000.0;
            for stage in order.order().to_vec() {
                let passed: f64 = rows * parts[stage];
                order.count(stage, rows as usize, passed as usize);
                rows = passed;
            }
            changes += u32::from(order.end_batch());
        }
        changes
    }

    fn free(costs: &[f64]) -> ProbeOrder {
        ProbeOrder::new(costs.iter().map(|&cost| (cost, vec![])))
    }

    #[test]
    fn the_stage_that_drops_most_for_its_cost_comes_first() {
        let mut order = free(&[1.0, 1.0, 1.0]);
        assert_eq!(run(&mut order, BATCHES_FIRST - 1, &[0.9, 0.5, 0.1]), 0);
        assert_eq!(run(&mut order, 1, &[0.9, 0.5, 0.1]), 1);
        assert_eq!(order.order(), [2, 1, 0]);
        assert_eq!(run(&mut order, 500, &[0.9, 0.5, 0.1]), 0);
        // A lookup in a large table is worth less.
        let mut order = free(&[12.0, 1.0]);
        run(&mut order, BATCHES_FIRST, &[0.4, 0.5]);
        assert_eq!(order.order(), [1, 0]);
        // A join that multiplies rows comes last.
        let mut order = free(&[1.0, 1.0]);
        run(&mut order, BATCHES_FIRST, &[3.0, 1.0]);
        assert_eq!(order.order(), [1, 0]);
    }

    #[test]
    fn the_order_follows_data_that_changes() {
        let mut order = free(&[1.0, 1.0]);
        assert_eq!(run(&mut order, 30, &[0.1, 0.9]), 0);
        assert_eq!(order.order(), [0, 1]);
        assert_eq!(run(&mut order, 600, &[0.9, 0.1]), 1);
        assert_eq!(order.order(), [1, 0]);
    }

    #[test]
    fn a_stage_stays_behind_the_build_that_it_needs() {
        let stages = [(1.0, vec![]), (1.0, vec![0]), (1.0, vec![]), (1.0, vec![1])];
        let mut order = ProbeOrder::new(stages);
        run(&mut order, 40, &[1.0, 0.5, 0.8, 0.01]);
        let place = |stage: usize| order.order().iter().position(|&of| of == stage);
        assert!(place(0) < place(1) && place(1) < place(3));
        assert_eq!(order.order().len(), 4);
    }

    #[test]
    fn the_order_stays_where_little_is_known_or_gained() {
        let mut order = free(&[1.0, 1.0]);
        assert_eq!(run(&mut order, 300, &[0.52, 0.5]), 0);
        assert_eq!(order.order(), [0, 1]);
        // No row comes behind the first stage.
        let mut order = free(&[1.0, 1.0, 1.0]);
        assert_eq!(run(&mut order, 300, &[0.0, 0.5, 0.2]), 0);
        assert_eq!(order.order(), [0, 1, 2]);
    }
}
