//! Grouping: verbs of one kind that are pending when the last batch ended are the next one, and become one statement and
//! one commit. Each caller is answered after it.

use super::{Fault, Shared};
use crate::{Result, StoreError};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// One batch takes no more verbs than this.
const BATCH_VERBS_MAX: usize = 500;
/// Nor more bytes, if it has more than one verb.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// A batch that the server rolled back because of another transaction is tried again this often.
const CONFLICTS_MAX: u32 = 5;

/// Verbs of one kind.
pub(super) trait Family: Send + Sync + 'static {
    type Ask: Send + Sync + 'static;
    type Answer: Send + 'static;

    /// Asks that touch the same thing never share a batch: one statement changes a row once.
    fn touches(ask: &Self::Ask) -> Option<u64>;

    fn bytes(_ask: &Self::Ask) -> usize {
        0
    }

    /// One answer for each ask, in order. A fault of the whole means that the server wrote nothing, or that nobody knows.
    fn write(
        shared: &Shared,
        asks: &[Self::Ask],
    ) -> impl Future<Output = std::result::Result<Vec<Result<Self::Answer>>, Fault>> + Send;
}

struct Asked<F: Family> {
    ask: F::Ask,
    caller: oneshot::Sender<Result<F::Answer>>,
}

pub(super) struct Batcher<F: Family> {
    inbox: mpsc::UnboundedSender<Asked<F>>,
    shared: Arc<Shared>,
}

impl<F: Family> Batcher<F> {
    /// Ends when it is dropped and everything that was handed in is answered.
    pub fn start(shared: &Arc<Shared>) -> Batcher<F> {
        let (inbox, asked) = mpsc::unbounded_channel();
        tokio::spawn(run::<F>(shared.clone(), asked));
        Batcher { inbox, shared: shared.clone() }
    }

    /// Hands a verb in and waits until it is committed.
    pub async fn write(&self, ask: F::Ask) -> Result<F::Answer> {
        let closed = || StoreError::Unavailable("the store is closed".into());
        let (caller, answer) = oneshot::channel();
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if self.inbox.send(Asked { ask, caller }).is_err() {
            self.shared.pending.fetch_sub(1, Ordering::Relaxed);
            return Err(closed());
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
}

async fn run<F: Family>(shared: Arc<Shared>, mut inbox: mpsc::UnboundedReceiver<Asked<F>>) {
    let mut waiting: VecDeque<Asked<F>> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match inbox.recv().await {
                Some(asked) => waiting.push_back(asked),
                None => return,
            }
        }
        while let Ok(asked) = inbox.try_recv() {
            waiting.push_back(asked);
        }
        let (asks, callers): (Vec<_>, Vec<_>) =
            take(&mut waiting, |asked| F::touches(&asked.ask), |asked| F::bytes(&asked.ask))
                .into_iter()
                .map(|asked| (asked.ask, asked.caller))
                .unzip();
        shared.pending.fetch_sub(asks.len(), Ordering::Relaxed);
        let answers = write_all::<F>(&shared, &asks).await;
        for (caller, answer) in callers.into_iter().zip(answers) {
            // The caller may have gone away; what it asked for is committed all the same.
            let _ = caller.send(answer);
        }
    }
}

/// The next batch, in order. What touches the same as something before it stays behind, and so does all that touches it.
fn take<T>(waiting: &mut VecDeque<T>, touches: impl Fn(&T) -> Option<u64>, bytes: impl Fn(&T) -> usize) -> Vec<T> {
    let (mut batch, mut later) = (Vec::new(), VecDeque::new());
    let (mut touched, mut size) = (HashSet::new(), 0);
    while let Some(next) = waiting.pop_front() {
        let is_full = batch.len() == BATCH_VERBS_MAX || (!batch.is_empty() && size + bytes(&next) > BATCH_BYTES_MAX);
        if is_full {
            later.push_back(next);
            break;
        }
        if touches(&next).is_none_or(|thing| touched.insert(thing)) {
            size += bytes(&next);
            batch.push(next);
        } else {
            later.push_back(next);
        }
    }
    later.append(waiting);
    *waiting = later;
    batch
}

async fn write_all<F: Family>(shared: &Shared, asks: &[F::Ask]) -> Vec<Result<F::Answer>> {
    match attempt::<F>(shared, asks).await {
        Ok(answers) => answers,
        // The server took offence at one of them and wrote none: the others must not suffer for it.
        Err(fault) if fault.is_refusal() && asks.len() > 1 => {
            let mut answers = Vec::with_capacity(asks.len());
            for ask in asks {
                match attempt::<F>(shared, std::slice::from_ref(ask)).await {
                    Ok(answer) => answers.extend(answer),
                    Err(fault) => answers.push(Err(shared.judge(&fault))),
                }
            }
            answers
        }
        Err(fault) => {
            let error = shared.judge(&fault);
            asks.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

async fn attempt<F: Family>(shared: &Shared, asks: &[F::Ask]) -> std::result::Result<Vec<Result<F::Answer>>, Fault> {
    let mut conflicts = 0;
    loop {
        let began = Instant::now();
        match F::write(shared, asks).await {
            Ok(answers) => {
                shared.committed(began);
                return Ok(answers);
            }
            Err(fault) if fault.is_conflict() && conflicts < CONFLICTS_MAX => conflicts += 1,
            Err(fault) => return Err(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What touches what, with sizes; the batches that come of it.
    fn check(waiting: &[(u64, usize)], batches: &[&[usize]]) {
        let mut waiting: VecDeque<_> = waiting.iter().copied().enumerate().collect();
        let mut made = Vec::new();
        while !waiting.is_empty() {
            let batch = take(&mut waiting, |(_, (thing, _))| (*thing > 0).then_some(*thing), |(_, (_, bytes))| *bytes);
            made.push(batch.into_iter().map(|(nth, _)| nth).collect::<Vec<_>>());
        }
        assert_eq!(made, batches);
    }

    #[test]
    fn what_touches_the_same_comes_in_order_in_batches_of_its_own() {
        check(&[(1, 0), (2, 0), (1, 0), (3, 0), (1, 0), (0, 0), (0, 0)], &[&[0, 1, 3, 5, 6], &[2], &[4]]);
    }

    #[test]
    fn a_batch_has_bounds_and_one_verb_always_fits() {
        let mib = 1 << 20;
        check(&[(0, 20 * mib), (0, 5 * mib), (0, 4 * mib), (0, mib)], &[&[0], &[1], &[2, 3]]);
        let many = vec![(0, 0); BATCH_VERBS_MAX + 1];
        let first: Vec<usize> = (0..BATCH_VERBS_MAX).collect();
        check(&many, &[&first, &[BATCH_VERBS_MAX]]);
    }
}
