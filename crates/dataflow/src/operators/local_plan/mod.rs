//! A plan of another library on one worker: rows come to it by the exchanges of its inputs, and it
//! emits rows as any operator does.
//!
//! The plan has no threads. A coroutine of the worker polls it and yields between two batches, so
//! that the worker takes the rows that come. Before each poll it looks whether the query is stopped
//! or has enough rows: a plan may be polled any number of times for one row.
//!
//! Where some inputs are replicated and another is not, the plan reads the replicated ones first,
//! as a join reads its build. The rows of the other wait at their source until each worker has
//! announced the end of the replicated ones, by the progress of the operator ([`REPLICATED`]); and
//! while [`UNREAD_BYTES_MAX`] of them have not been read. If an operator on their path has several
//! output edges, that could hold back the replicated ones too: then they are taken, and kept.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use arrow::record_batch::RecordBatch;
use state::Spilled;
use state::epoch::Progress;

use crate::checkpoint::OperatorSnapshot;
use crate::error::DataflowError;
use crate::exchange::{Arrival, GATHERER, Inputs, Instance, Member, Outgoing, Port, Task};
use crate::job::{Distribution, Exchange, LocalInput, LocalMemory, LocalOperator, LocalRun};
use crate::operators::downstream::Downstream;
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask};
use crate::operators::restoring::Restoring;
use crate::rows::Rows;
use crate::rows::wire::compact;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::Signals;
use crate::runtime::scheduler::yield_now;

/// The watermark by which a worker announces that its replicated inputs have ended.
const REPLICATED: i64 = 1;

/// Bytes of an input that the plan has not read, from which on no more rows of it are taken.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// A [`LocalOperator`] on one worker.
pub(crate) struct LocalPlanRun<D> {
    instance: Instance,
    inputs: Vec<InputOrder>,
    /// The replicated inputs that have not ended on this worker.
    replicated: Cell<usize>,
    /// Nothing if another worker has all rows.
    run: RefCell<Option<Box<dyn LocalRun>>>,
    accounting: Rc<StateAccounting>,
    /// The part of the counters of spilled bytes that was published.
    spilled: Cell<Spilled>,
    behind: D,
    metrics: Arc<Metrics>,
    /// Interrupts the sleep of the worker.
    worker: Waker,
    signals: Arc<Signals>,
}

/// When the rows of an input are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputOrder {
    /// Before those of others.
    First,
    /// When those are complete.
    Then,
    /// As they come.
    Any,
}

impl<D: Downstream> LocalPlanRun<D> {
    /// Begins a run of the plan. `holds` says by input whether an operator on its path has several
    /// output edges.
    ///
    /// # Errors
    /// When it cannot run.
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, shuffle, .. }: OperatorContext<'_>,
        spec: &LocalOperator,
        holds: &[bool],
        behind: D,
    ) -> Result<Self, DataflowError> {
        let orders = orders(spec, holds);
        let inputs = if place.workers > 1 && spec.exchange != Exchange::Forward {
            let port = |input: &LocalInput| Port {
                schema: input.schema.clone(),
                keys: input.keys.clone(),
                distribution: input.distribution,
                partitioner: None,
                multi_partitioner: None,
                window: None,
                waits: false,
            };
            let ports = spec.inputs.iter().map(port).collect();
            Inputs::of_rows(tag, ports, spec.exchange, place, shuffle)
        } else {
            Inputs::local(spec.inputs.len(), place)
        };
        let alone = inputs.is_local();
        let runs = alone || !spec.gathers() || place.worker == GATHERER;
        let memory =
            LocalMemory { bytes_max: place.accounting.share(tag), disk: place.disk.clone() };
        let signals = place.signals.clone();
        let is_stopped = Arc::new(move || signals.is_stopped());
        let run = if runs { Some(spec.plan.open(memory, is_stopped)?) } else { None };
        Ok(Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            replicated: Cell::new(orders.iter().filter(|of| **of == InputOrder::First).count()),
            inputs: orders,
            run: RefCell::new(run),
            accounting: place.accounting.clone(),
            spilled: Cell::default(),
            behind,
            metrics,
            worker: place.external.waker(),
            signals: place.signals.clone(),
        })
    }

    /// Emits the rows of the plan, until there are no more.
    async fn emit(&self) -> Result<(), DataflowError> {
        let (mut waker, mut is_cut) = (None, false);
        loop {
            let next = poll_fn(|cx| {
                is_cut |= self.leaves();
                let waker = waker.get_or_insert_with(|| self.waker(cx));
                let bytes_max = self.accounting.share(self.instance.tag);
                let polled = match &mut *self.run.borrow_mut() {
                    Some(run) => run.poll(&mut Context::from_waker(waker), bytes_max),
                    None => Poll::Ready(None),
                };
                // It may have read rows, for which others wait.
                self.instance.clock_moved.notify();
                polled
            });
            let next = next.await.transpose();
            // Another thread may have stopped the query meanwhile.
            is_cut |= self.leaves();
            if self.run.borrow().is_none() {
                self.instance.clock_moved.notify();
                break;
            }
            let Some(batch) = next.map_err(DataflowError::of_made_rows)? else { break };
            self.publish_bytes()?;
            if batch.num_rows() > 0 {
                self.behind.push(Rows::on_time(batch)).await?;
            }
            yield_now().await;
        }
        self.publish_bytes()?;
        // More rows may come, although the plan does not need them.
        let ended = || self.time().1.then_some(self.time().0);
        let watermark = self.instance.clock_moved.wait_for(ended).await;
        let is_complete = watermark == i64::MAX && !is_cut;
        self.behind.end(if is_complete { i64::MAX } else { i64::MIN }).await
    }

    /// Drops the run if the query is stopped or nobody wants more rows; gives whether rows may be
    /// missing for that.
    fn leaves(&self) -> bool {
        let is_stopped = self.signals.is_stopped();
        if !is_stopped && !self.behind.is_satisfied() {
            return false;
        }
        self.run.borrow_mut().take().is_some() && is_stopped
    }

    /// Whether rows of other inputs wait for the replicated ones.
    fn is_ordered(&self) -> bool {
        self.inputs.contains(&InputOrder::First)
    }

    /// Whether rows of an input that comes after others are taken now: also if nobody reads them
    /// any more.
    fn takes(&self, input: usize) -> bool {
        let run = self.run.borrow();
        let unread = run.as_ref().map(|run| run.unread_bytes(input));
        unread.is_none_or(|bytes| self.least() >= REPLICATED && bytes < UNREAD_BYTES_MAX)
    }

    /// Wakes the coroutine, and also the worker if another thread calls it.
    fn waker(&self, cx: &Context<'_>) -> Waker {
        let (coroutine, worker) = (cx.waker().clone(), self.worker.clone());
        Waker::from(Arc::new(Both { coroutine, worker }))
    }

    /// Publishes the bytes of state, and holds them to their bound.
    fn publish_bytes(&self) -> Result<(), DataflowError> {
        let run = self.run.borrow();
        let Some(run) = &*run else { return Ok(self.accounting.set(self.instance.tag, 0)?) };
        self.metrics.count_spilled(self.instance.tag, &self.spilled, run.spilled());
        Ok(self.accounting.set(self.instance.tag, run.bytes())?)
    }
}

/// By input: when its rows are taken.
fn orders(spec: &LocalOperator, holds: &[bool]) -> Vec<InputOrder> {
    let streams = |input: usize| spec.streams(input) && !holds[input];
    let streaming = (0..spec.inputs.len()).any(streams);
    let order = |(number, input): (usize, &LocalInput)| match input.distribution {
        _ if streams(number) => InputOrder::Then,
        Distribution::Broadcast if streaming => InputOrder::First,
        _ => InputOrder::Any,
    };
    spec.inputs.iter().enumerate().map(order).collect()
}

/// Wakes a coroutine and its worker.
struct Both {
    coroutine: Waker,
    worker: Waker,
}

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.coroutine.wake_by_ref();
        self.worker.wake_by_ref();
    }
}

impl<D: Downstream> OperatorTask for LocalPlanRun<D> {
    fn when_ready(&self, input: usize) -> Option<Task<'_>> {
        if self.inputs[input] != InputOrder::Then || self.takes(input) {
            return None;
        }
        Some(Box::pin(async move {
            self.instance.clock_moved.wait_for(|| self.takes(input).then_some(())).await;
            Ok(())
        }))
    }

    fn push(&self, Arriving { input, rows, .. }: Arriving) -> Task<'_> {
        Box::pin(async move {
            if rows.batch.num_rows() > 0 {
                self.instance.inputs.push(self, Outgoing::of(input, rows.batch)).await?;
            }
            Ok(())
        })
    }

    /// Announces the end of the replicated inputs.
    fn end_input(&self, input: usize, _: i64) -> Option<Task<'_>> {
        if self.inputs[input] != InputOrder::First {
            return None;
        }
        self.replicated.set(self.replicated.get() - 1);
        let all = self.replicated.get() == 0;
        all.then(|| self.instance.inputs.progress(self, REPLICATED, false)).flatten()
    }

    fn progress(&self, watermark: i64, idle: bool) -> Option<Task<'_>> {
        if self.is_ordered() {
            return None;
        }
        self.instance.inputs.progress(self, watermark, idle)
    }

    fn resume(&self) -> Task<'_, i64> {
        if self.is_ordered() {
            return Box::pin(std::future::ready(Ok(i64::MIN)));
        }
        Box::pin(self.instance.inputs.resume(self))
    }

    fn end(&self, watermark: i64) -> Task<'_> {
        Box::pin(self.instance.inputs.end(self, watermark))
    }

    fn is_satisfied(&self) -> bool {
        self.behind.is_satisfied()
    }

    /// Nothing is saved: see [`SavedState::Rebuilt`](crate::job::SavedState::Rebuilt).
    fn save(&self) -> Result<Option<OperatorSnapshot>, DataflowError> {
        Ok(None)
    }

    fn load(&self, _: &Restoring<'_>) -> Result<(), DataflowError> {
        Ok(())
    }

    fn run(&self) -> Task<'_> {
        Box::pin(self.emit())
    }
}

impl<D: Downstream> Member for LocalPlanRun<D> {
    fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Time means nothing to the plan.
    fn crosses(&self, from: i64, to: i64) -> bool {
        self.is_ordered() && from != to
    }

    /// An input of the plan ends when no worker has rows of it any more.
    fn move_clock(&self, worker: u32, progress: Progress) {
        let moved = self.instance.leader.borrow_mut().advance(worker, progress);
        if moved && let Some(run) = &mut *self.run.borrow_mut() {
            let (watermark, all) = self.time();
            let replicated = self.is_ordered() && watermark >= REPLICATED;
            for (input, order) in self.inputs.iter().enumerate() {
                if all || replicated && *order == InputOrder::First {
                    run.end(input);
                }
            }
        }
        if moved {
            self.instance.clock_moved.notify();
        }
    }

    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        if let Some(run) = &mut *self.run.borrow_mut() {
            run.push(arrival.port, compact(batch));
        }
        self.publish_bytes()
    }
}
