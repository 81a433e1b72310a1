//! The recovery of a job, by operator: its state is saved, built anew or lost. EXPLAIN shows it on
//! request, and in scripts that set how the job is saved.

use std::fmt::Write;

use dataflow::job::{CheckpointInterval, Guarantee, JobRecovery};
use serde_json::{Value, json};

use super::Explain;
use crate::expr::given::GivenFunction;
use crate::text::settings::InForce;
use crate::text::units::span_ns;

/// The settings of a job's checkpoints, and whether EXPLAIN tells how it is recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RecoveryAsked {
    pub(crate) shown: bool,
    pub(crate) checkpoint: Option<CheckpointInterval>,
    pub(crate) guarantee: Option<Guarantee>,
}

impl RecoveryAsked {
    /// As the settings say. Somebody who has set one of them wants to see what comes of it.
    pub(crate) fn of(settings: &InForce) -> Self {
        let given = |name| settings.given.contains_key(name);
        Self {
            shown: given("millstream.checkpoint") || given("millstream.guarantee"),
            checkpoint: settings.job.checkpoint,
            guarantee: settings.job.guarantee,
        }
    }

    /// How often the job is saved.
    fn interval(self) -> String {
        match self.checkpoint {
            None => "at its end and its stop".to_owned(),
            Some(CheckpointInterval::Auto) => "as often as costs little".to_owned(),
            Some(CheckpointInterval::Every(ns)) => {
                format!("every {}", span_ns(i64::try_from(ns.get()).unwrap_or(i64::MAX)))
            }
        }
    }
}

impl Explain {
    /// How the job is recovered, if that is shown.
    pub(super) fn recovery(&self) -> Option<JobRecovery> {
        let RecoveryAsked { shown, guarantee, .. } = self.recovery;
        let functions: Vec<_> = self.functions.iter().map(GivenFunction::of_job).collect();
        shown.then(|| JobRecovery::of(&self.operators, &functions, guarantee))
    }

    /// The lines on the job as a whole.
    fn verdicts(&self, recovery: &JobRecovery) -> Vec<String> {
        let JobRecovery { obstacles, refusals, .. } = recovery;
        if !refusals.is_empty() {
            let each = refusals.iter();
            return each
                .map(|refusal| format!("refused with --state: {}", refusal.message))
                .collect();
        }
        if obstacles.is_empty() {
            return vec![format!("checkpoints: {}", self.recovery.interval())];
        }
        vec![format!(
            "no checkpoints, the job begins anew after a failure: {}",
            obstacles.join("; ")
        )]
    }

    pub(super) fn write_recovery(&self, out: &mut String) {
        let Some(recovery) = self.recovery() else { return };
        let names = self.operators();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "recovery of a job with --state");
        for (name, fate) in names.iter().zip(&recovery.operators) {
            let _ = writeln!(out, "  {name:<width$}  {fate}");
        }
        for verdict in self.verdicts(&recovery) {
            let _ = writeln!(out, "  {verdict}");
        }
        out.push('\n');
    }

    pub(super) fn recovery_json(&self) -> Option<Value> {
        let recovery = self.recovery()?;
        let fates = recovery.operators.iter().enumerate();
        let operator =
            |(at, fate): (usize, _)| json!({ "operator": at, "text": format!("{fate}") });
        Some(json!({
            "guarantee": self.recovery.guarantee.map_or("auto", Guarantee::name),
            "checkpoints": recovery.obstacles.is_empty().then(|| self.recovery.interval()),
            "operators": fates.map(operator).collect::<Vec<_>>(),
            "obstacles": recovery.obstacles,
            "refusals": recovery.refusals.iter().map(|of| &*of.message).collect::<Vec<_>>(),
        }))
    }
}
