//! Calls under way, one for each key. Who comes while one is made waits for its end; who leaves does not end it.

use super::Rules;
use super::answer::Answer;
use crate::effects::{Forwarded, HttpCall, HttpClient, Sent};
use crate::house::House;
use clinch_core::attempt::is_of_gateway;
use clinch_core::call::{CallAnswer, CallKey, CallTurn, Caller};
use clinch_core::effect::Idempotency;
use clinch_core::key::Fingerprint;
use clinch_store::{CallAsk, CallEnd, Called, Held, StoreError};
use http::header::{DATE, SET_COOKIE};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

/// A longer answer is neither kept nor handed on.
pub const ANSWER_BYTES_MAX: usize = 10 << 20;
/// After the time that a call may take, so long to write down how it ended.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// So often a store is asked whether a call may be made, if its answer was lost: it may have been a yes.
const ASKS_MAX: u32 = 3;
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// So many turns that may have been given are given back at a time. The key of one more is taken until its time is over.
const GIVEN_BACK_MAX: usize = 1_000;

pub struct Call {
    pub key: CallKey,
    pub fingerprint: Fingerprint,
    pub http: HttpCall,
}

pub struct Calls {
    house: House,
    http: Arc<HttpClient>,
    rules: Rules,
    tasks: TaskTracker,
    giving_back: Arc<Semaphore>,
    under_way: Mutex<HashMap<CallKey, UnderWay>>,
}

#[derive(Clone)]
struct UnderWay {
    fingerprint: Fingerprint,
    end: watch::Receiver<Option<Answer>>,
}

impl Calls {
    pub fn new(house: House, http: Arc<HttpClient>, rules: Rules, tasks: TaskTracker) -> Calls {
        let giving_back = Arc::new(Semaphore::new(GIVEN_BACK_MAX));
        Calls { house, http, rules, tasks, giving_back, under_way: Mutex::default() }
    }

    /// The end of this call, whoever makes it.
    pub async fn join(self: &Arc<Self>, call: Call) -> Answer {
        let fingerprint = call.fingerprint;
        let (mut under_way, is_first) = self.enter(call);
        if under_way.fingerprint != fingerprint {
            return Answer::Other;
        }
        match under_way.end.wait_for(Option::is_some).await {
            Ok(answer) => {
                let answer = answer.clone().expect("it was waited for");
                if is_first { answer } else { answer.again() }
            }
            // Whoever made it is gone without a word.
            Err(_) => Answer::StoreDown,
        }
    }

    fn enter(self: &Arc<Self>, call: Call) -> (UnderWay, bool) {
        let mut calls = self.under_way();
        if let Some(under_way) = calls.get(&call.key) {
            return (under_way.clone(), false);
        }
        let (tell, end) = watch::channel(None);
        let under_way = UnderWay { fingerprint: call.fingerprint, end };
        calls.insert(call.key, under_way.clone());
        let all = self.clone();
        self.tasks.spawn(async move {
            let key = call.key;
            let answer = all.make(call).await;
            all.under_way().remove(&key);
            let _ = tell.send(Some(answer));
        });
        (under_way, true)
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<CallKey, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn make(&self, call: Call) -> Answer {
        let now = self.house.clock.now();
        let turn = CallTurn::alone(u64::try_from(self.house.clock.random() >> 64).unwrap_or(0));
        let ask = CallAsk {
            key: call.key,
            caller: Caller { fingerprint: call.fingerprint, turn, resends: self.rules.resends },
            at: now,
            until: now + self.rules.timeout + WRITE_MAX,
            expires: now + self.rules.keep,
        };
        match self.begin(ask).await {
            Ok(Called::Ours) => {}
            Ok(Called::Before(Ok(kept)) | Called::Own(Ok(kept))) => {
                return CallAnswer::decode(&kept).map_or(Answer::Unreadable, Answer::kept);
            }
            Ok(Called::Before(Err(why)) | Called::Own(Err(why))) => {
                tracing::warn!("an answer that was kept cannot be read: {why}");
                return Answer::Unreadable;
            }
            Ok(Called::Other) => return Answer::Other,
            Ok(Called::Busy { .. }) => return Answer::Busy,
            Ok(Called::Unknown { since }) => return Answer::Unknown(since),
            Err(error) => {
                tracing::debug!("a call was refused: {error}");
                self.give_back(call.key, turn);
                return Answer::StoreDown;
            }
        }
        crate::crash::point("after_begin_call");
        let sent = self.http.forward(call.http, Idempotency::None, ANSWER_BYTES_MAX).await;
        crate::crash::point("after_call");
        let end = match &sent {
            Ok(forwarded) if forwarded.status.is_success() => CallEnd::Done(kept(forwarded).encode().into()),
            Ok(forwarded) if is_of_gateway(forwarded.status.as_u16()) => CallEnd::Unknown,
            // Only successes are remembered.
            Ok(_) => CallEnd::NotDone,
            Err(Sent::NoAnswer { .. }) => CallEnd::Unknown,
            Err(_) => CallEnd::NotDone,
        };
        match self.house.insist(|| self.house.store.end_call(call.key, turn, end.clone())).await {
            Ok(Held::Held) => {}
            Ok(Held::Lost) => tracing::warn!("a call ended after another had been allowed to make it again"),
            Err(error) => tracing::error!("how a call ended could not be written down: {error}"),
        }
        match sent {
            Ok(forwarded) => Answer::made(forwarded),
            Err(sent) => Answer::failed(sent),
        }
    }
}

impl Calls {
    /// Under the same turn, so that a yes that was lost is given again.
    async fn begin(&self, ask: CallAsk) -> clinch_store::Result<Called> {
        for _ in 1..ASKS_MAX {
            match self.house.store.begin_call(ask.clone()).await {
                Err(StoreError::Unavailable(why)) => {
                    tracing::debug!("the store is asked again: {why}");
                    tokio::time::sleep(ASK_PAUSE).await;
                }
                answer => return answer,
            }
        }
        self.house.store.begin_call(ask).await
    }

    /// Nothing was sent, and the turn may be ours all the same: the key is free again as soon as the store can write.
    fn give_back(&self, key: CallKey, turn: CallTurn) {
        let Ok(permit) = self.giving_back.clone().try_acquire_owned() else { return };
        let house = self.house.clone();
        self.tasks.spawn(async move {
            let given = house.insist(|| house.store.end_call(key, turn, CallEnd::NotDone)).await;
            if let Err(error) = given {
                tracing::warn!("the key of a call that was not made may be taken for a while: {error}");
            }
            drop(permit);
        });
    }
}

/// What is kept of an answer: not what belongs to the one who asked first, or to the moment.
fn kept(forwarded: &Forwarded) -> CallAnswer {
    let headers = super::end_to_end(forwarded.headers.clone());
    let headers = headers.iter().filter(|(name, _)| **name != SET_COOKIE && **name != DATE);
    CallAnswer {
        status: forwarded.status.as_u16(),
        headers: headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect(),
        body: forwarded.body.clone(),
    }
}
