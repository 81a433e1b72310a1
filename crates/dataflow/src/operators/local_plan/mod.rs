//! A plan of another library on one worker: rows come to it by the exchanges of its inputs, and it
//! emits rows as any operator does.
//!
//! The plan has no threads. A coroutine of the worker polls it and yields between two batches, so
//! that the worker takes the rows that come.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use arrow::record_batch::RecordBatch;
use state::Spilled;
use state::epoch::Progress;

use crate::error::DataflowError;
use crate::exchange::{Arrival, GATHERER, Inputs, Instance, Member, Outgoing, Port, Task};
use crate::job::{Exchange, LocalInput, LocalMemory, LocalOperator, LocalRun};
use crate::operators::downstream::Downstream;
use crate::operators::operator::{Arriving, OperatorContext, OperatorTask};
use crate::rows::Rows;
use crate::rows::wire::compact;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::Signals;
use crate::runtime::scheduler::yield_now;

/// A [`LocalOperator`] on one worker.
pub(crate) struct LocalPlanRun<D> {
    instance: Instance,
    inputs: usize,
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

impl<D: Downstream> LocalPlanRun<D> {
    /// Begins a run of the plan.
    ///
    /// # Errors
    /// When it cannot run.
    pub(crate) fn new(
        OperatorContext { tag, place, net, metrics, shuffle }: OperatorContext<'_>,
        spec: &LocalOperator,
        behind: D,
    ) -> Result<Self, DataflowError> {
        let inputs = if place.workers > 1 && spec.exchange != Exchange::Forward {
            let port = |input: &LocalInput| Port {
                schema: input.schema.clone(),
                keys: input.keys.clone(),
                distribution: input.distribution,
                partitioner: None,
                multi_partitioner: None,
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
        let run = if runs { Some(spec.plan.open(memory)?) } else { None };
        Ok(Self {
            instance: Instance::new(tag, place, net, inputs, alone),
            inputs: spec.inputs.len(),
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
                let waker = waker.get_or_insert_with(|| self.waker(cx));
                let bytes_max = self.accounting.share(self.instance.tag);
                match &mut *self.run.borrow_mut() {
                    Some(run) => run.poll(&mut Context::from_waker(waker), bytes_max),
                    None => Poll::Ready(None),
                }
            });
            let next = next.await.transpose().map_err(DataflowError::of_made_rows)?;
            let Some(batch) = next else { break };
            if self.behind.is_satisfied() {
                self.run.borrow_mut().take();
                break;
            }
            if self.signals.is_stopped() {
                self.run.borrow_mut().take();
                is_cut = true;
                break;
            }
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
        self.behind.end(if is_cut { i64::MIN } else { watermark }).await
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
    fn push(&self, Arriving { input, rows, .. }: Arriving) -> Task<'_> {
        Box::pin(async move {
            if rows.batch.num_rows() > 0 {
                self.instance.inputs.push(self, Outgoing::of(input, rows.batch)).await?;
            }
            Ok(())
        })
    }

    fn progress(&self, watermark: i64, idle: bool) -> Option<Task<'_>> {
        self.instance.inputs.progress(self, watermark, idle)
    }

    fn resume(&self) -> Task<'_, i64> {
        Box::pin(self.instance.inputs.resume(self))
    }

    fn end(&self, watermark: i64) -> Task<'_> {
        Box::pin(self.instance.inputs.end(self, watermark))
    }

    fn is_satisfied(&self) -> bool {
        self.behind.is_satisfied()
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
    fn crosses(&self, _: i64, _: i64) -> bool {
        false
    }

    /// The inputs of the plan end when no worker has rows any more.
    fn move_clock(&self, worker: u32, progress: Progress) {
        let moved = self.instance.leader.borrow_mut().advance(worker, progress);
        if moved
            && self.time().1
            && let Some(run) = &mut *self.run.borrow_mut()
        {
            (0..self.inputs).for_each(|input| run.end(input));
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
