//! One attempt of a job: how it ended, and what that means for the job.

use crate::death::Reason;
use crate::effect::Idempotency;
use crate::expr::BadExpr;
use crate::integration::Statuses;
use crate::job::{Change, Ending, Waits};
use crate::retry::RetryPolicy;
use crate::time::Timestamp;
use crate::worker::Action;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded(Ending),
    /// It did not work and may work later.
    Failed(Failure),
    /// It did not work and will not, however often it is tried.
    Refused(Failure),
    /// A rule or a person would not have it: the job ends without it, and nothing failed. The failure says which, and why.
    Declined(Failure),
    /// A request was sent and its answer was lost.
    Unknown {
        class: Idempotency,
        failure: Failure,
    },
    /// The worker is gone. `open` is the class of the effect that it had begun, if any.
    Lost {
        open: Option<Idempotency>,
    },
    /// It must wait for something else than its own work: nobody's fault, no attempt charged.
    PutOff {
        until: Timestamp,
        waits: Waits,
    },
    /// We stopped it (a shutdown, or it was too late to be sure that the job is ours): nobody's fault, no attempt charged.
    Interrupted,
}

/// What the steps of a job came to that ran to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Something was done outside, or a key was set.
    pub acted: bool,
    /// Something was computed, or looked at.
    pub ran: bool,
    /// A step was left out by its condition.
    pub left_out: bool,
}

impl Tally {
    /// To find out that there is nothing to do, and to do nothing then, is no success of anything.
    pub fn ending(self) -> Ending {
        if self.acted || (self.ran && !self.left_out) { Ending::Success } else { Ending::Noop }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: Reason,
    /// For people: what happened, without secrets or bodies.
    pub error: String,
    /// The target asked for this pause.
    pub retry_after: Option<Duration>,
}

impl Failure {
    pub fn new(reason: Reason, error: impl Into<String>) -> Self {
        Failure { reason, error: error.into(), retry_after: None }
    }
}

/// A value that is needed is not there.
impl From<BadExpr> for Failure {
    fn from(error: BadExpr) -> Self {
        Failure::new(Reason::MissingData, error.0)
    }
}

impl Outcome {
    /// The word of the attempt's row.
    pub const fn word(&self) -> &'static str {
        match self {
            Outcome::Succeeded(Ending::Success) => "success",
            Outcome::Succeeded(Ending::Noop | Ending::Declined(_)) | Outcome::Declined(_) => "noop",
            Outcome::Failed(_) => "failed",
            Outcome::Refused(_) => "refused",
            Outcome::Unknown { .. } => "unknown",
            Outcome::Lost { .. } => "lost",
            Outcome::PutOff { .. } => "put_off",
            Outcome::Interrupted => "interrupted",
        }
    }

    /// Does it use up one of the job's attempts?
    pub const fn is_charged(&self) -> bool {
        !matches!(self, Outcome::Interrupted | Outcome::PutOff { .. })
    }

    /// What it means where an earlier send may have arrived: to say that nothing was done would hide that.
    pub fn after(self, is_in_doubt: bool) -> Outcome {
        match self {
            Outcome::Declined(Failure { error, .. }) if is_in_doubt => {
                let error = format!("{error}; it was sent before, and what came of that is not known");
                Outcome::Refused(Failure::new(Reason::UnknownOutcome, error))
            }
            outcome => outcome,
        }
    }

    pub fn failure(&self) -> Option<Failure> {
        match self {
            Outcome::Failed(failure)
            | Outcome::Refused(failure)
            | Outcome::Declined(failure)
            | Outcome::Unknown { failure, .. } => Some(failure.clone()),
            Outcome::Lost { open: None } => {
                Some(Failure::new(Reason::Internal, "the worker was lost before it sent anything"))
            }
            Outcome::Lost { open: Some(_) } => {
                Some(Failure::new(Reason::UnknownOutcome, "the worker was lost after it had begun to send"))
            }
            Outcome::Succeeded(_) | Outcome::Interrupted | Outcome::PutOff { .. } => None,
        }
    }
}

/// What the job has behind it when an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Failures before this attempt.
    pub failures: u32,
    pub first_attempt_at: Timestamp,
}

/// Outcome and policy in, change out. `dice` is uniform in [0, 1).
pub fn verdict(outcome: &Outcome, past: Past, retry: &RetryPolicy, now: Timestamp, dice: f64) -> Change {
    let again = |failure: &Failure| {
        let failures = past.failures.saturating_add(1);
        let pause = retry.pause_after(failures, dice);
        let pause = failure.retry_after.map_or(pause, |asked| pause.max(asked)).min(retry.pause_max.max(pause));
        let run_at = now + pause;
        let too_late = retry.elapsed_max.is_some_and(|most| run_at.since(past.first_attempt_at) > most);
        if retry.spent_by(failures) || too_late {
            Change::Buried { at: now, reason: failure.reason }
        } else {
            Change::Retried { run_at }
        }
    };
    match outcome {
        Outcome::Succeeded(ending) => Change::Finished { at: now, ending: *ending },
        Outcome::Refused(failure) => Change::Buried { at: now, reason: failure.reason },
        Outcome::Declined(failure) => Change::Finished { at: now, ending: Ending::Declined(failure.reason) },
        Outcome::Unknown { class, .. } | Outcome::Lost { open: Some(class) } if !class.is_protected() => {
            Change::Buried { at: now, reason: Reason::UnknownOutcome }
        }
        Outcome::Failed(failure) | Outcome::Unknown { failure, .. } => again(failure),
        Outcome::Lost { .. } => again(&outcome.failure().expect("a lost attempt has a failure")),
        Outcome::PutOff { until, waits } => Change::PutOff { run_at: *until, waits: *waits },
        Outcome::Interrupted => Change::HandedBack { run_at: now },
    }
}

/// What an HTTP answer means for the attempt: `None` is success. When to come again is asked only of who failed.
pub fn read_status(
    status: u16,
    retry_on: &Statuses,
    retry_after: impl FnOnce() -> Option<Duration>,
) -> Option<(Reason, Again)> {
    let reason = match status {
        200..=299 => return None,
        401 | 403 => Reason::AuthFailed,
        429 => Reason::RateLimited,
        408 => Reason::Timeout,
        425 | 500..=599 => Reason::TargetDown,
        _ => Reason::RejectedByTarget,
    };
    let again = match retry_on.has(status) {
        true if is_of_gateway(status) && *retry_on == Statuses::default() => Again::Unsure(retry_after()),
        true => Again::Later(retry_after()),
        false => Again::Never,
    };
    Some((reason, again))
}

/// Answered by somebody in between, who lost the target or waited for it in vain: it may have done what it was asked for.
pub const fn is_of_gateway(status: u16) -> bool {
    matches!(status, 502 | 504)
}

/// Why a step that does this is tried again, as far as its action and its partner say. A job that is undone, or whose worker was
/// lost before it did anything, has other reasons.
pub fn retried_for(action: &Action) -> BTreeSet<Reason> {
    let Some((partner, _)) = action.outward() else {
        let inside = match action {
            Action::Parallel(branches) => &branches[..],
            _ => &[],
        };
        let asks = matches!(action, Action::Policy(_)).then_some(Reason::TargetDown);
        let steps = inside.iter().flat_map(|branch| &branch.steps);
        return steps.flat_map(|step| retried_for(&step.action)).chain(asks).collect();
    };
    let answered = (100..=599).filter_map(|status| match read_status(status, &partner.retry_on, || None)? {
        (reason, Again::Later(_) | Again::Unsure(_)) => Some(reason),
        (_, Again::Never) => None,
    });
    let own = match action {
        Action::Script(_) => vec![Reason::ScriptError],
        Action::Sql(_) => Vec::new(),
        Action::Send(_) => answered.chain([Reason::AuthFailed, Reason::RateLimited]).collect(),
        _ => answered.collect(),
    };
    own.into_iter().chain([Reason::TargetDown, Reason::Timeout, Reason::UnknownOutcome]).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Later(Option<Duration>),
    /// It is not known whether it was done, as after an answer that was lost.
    Unsure(Option<Duration>),
    Never,
}

const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// `Retry-After` as seconds or an HTTP date; what is past, garbage or negative says nothing.
pub fn read_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        let seconds = text.parse::<u64>().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds.max(1)).min(RETRY_AFTER_MAX));
    }
    // Read as a civil time, which reaches to the end of the year 9999; the calendar of instants stops a day earlier.
    let date = jiff::civil::DateTime::strptime("%a, %d %b %Y %H:%M:%S GMT", text).ok()?;
    let today = jiff::Timestamp::from_microsecond(now.as_micros()).ok()?.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let pause = Duration::try_from(today.duration_until(date)).ok()?;
    (!pause.is_zero()).then(|| pause.clamp(Duration::from_secs(1), RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn policy() -> RetryPolicy {
        RetryPolicy {
            jitter: crate::retry::Jitter::None,
            attempts_max: NonZeroU32::new(3).expect("3"),
            ..RetryPolicy::default()
        }
    }

    fn check(outcome: Outcome, failures: u32, change: Change) {
        let past = Past { failures, first_attempt_at: NOW };
        assert_eq!(verdict(&outcome, past, &policy(), NOW, 0.5), change, "{outcome:?} after {failures} failures");
    }

    fn failed() -> Failure {
        Failure::new(Reason::TargetDown, "503")
    }

    #[test]
    fn h1_a_step_is_tried_again_for_what_its_action_and_its_partner_can_say() {
        let worker = "version: 1
name: w
consumes: {queue: q}
run:
  - {name: plain, http: {url: 'https://example.com', idempotency: header}}
  - {name: own, http: {integration: crm, url: /x}}
  - {name: made, transform: {a: 1}}
";
        let crm = "{base_url: 'https://crm.example.com', idempotency: header, retry_on: [401, 409, 503]}";
        let flow = "version: 1\nname: a\ntriggers: [{source: shop}]\nsteps: [{name: e, queue: {name: q}}]\n";
        let files = crate::config::Files(vec![
            ("clinch.yml".into(), format!("sources: {{shop: {{verify: none}}}}\nintegrations: {{crm: {crm}}}\n")),
            ("flows/a.yml".into(), flow.into()),
            ("queues.yml".into(), "queues: [{name: q}]\n".into()),
            ("workers/w.yml".into(), worker.into()),
        ]);
        let (workspace, _) = crate::config::load(&files).unwrap_or_else(|problems| panic!("{problems:?}"));
        let check = |name: &str, expected: &[&str]| {
            let step = workspace.workers[0].all_steps().find(|step| &*step.name == name).expect("a step");
            let reasons: Vec<&str> = retried_for(&step.action).into_iter().map(Reason::word).collect();
            assert_eq!(reasons, expected, "{name}");
        };
        check("plain", &["rate_limited", "target_down", "timeout", "unknown_outcome"]);
        check("own", &["auth_failed", "rejected_by_target", "target_down", "timeout", "unknown_outcome"]);
        check("made", &[]);
    }

    #[test]
    fn c11_a_job_that_only_found_out_that_there_is_nothing_to_do_did_nothing() {
        let tally = |acted, ran, left_out| Tally { acted, ran, left_out }.ending();
        assert_eq!(tally(false, false, true), Ending::Noop);
        assert_eq!(tally(false, true, true), Ending::Noop);
        assert_eq!(tally(false, true, false), Ending::Success);
        assert_eq!(tally(true, true, true), Ending::Success);
    }

    #[test]
    fn p4_a_spent_budget_buries_the_job_with_the_last_reason() {
        check(Outcome::Failed(failed()), 0, Change::Retried { run_at: NOW + Duration::from_secs(2) });
        check(Outcome::Failed(failed()), 1, Change::Retried { run_at: NOW + Duration::from_secs(4) });
        check(Outcome::Failed(failed()), 2, Change::Buried { at: NOW, reason: Reason::TargetDown });
    }

    #[test]
    fn p4_a_worker_that_died_costs_an_attempt_and_a_shutdown_does_not() {
        check(Outcome::Lost { open: None }, 0, Change::Retried { run_at: NOW + Duration::from_secs(2) });
        check(Outcome::Lost { open: None }, 2, Change::Buried { at: NOW, reason: Reason::Internal });
        check(Outcome::Interrupted, 2, Change::HandedBack { run_at: NOW });
        assert!(!Outcome::Interrupted.is_charged());
        let put_off = Outcome::PutOff { until: NOW + Duration::from_secs(30), waits: Waits::Key };
        assert!(!put_off.is_charged());
        check(put_off, 2, Change::PutOff { run_at: NOW + Duration::from_secs(30), waits: Waits::Key });
    }

    #[test]
    fn p3_an_unknown_outcome_is_buried_unless_the_target_can_tell() {
        let unknown = |class| Outcome::Unknown { class, failure: Failure::new(Reason::Timeout, "no answer") };
        check(unknown(Idempotency::None), 0, Change::Buried { at: NOW, reason: Reason::UnknownOutcome });
        check(unknown(Idempotency::Header), 0, Change::Retried { run_at: NOW + Duration::from_secs(2) });
        check(unknown(Idempotency::Natural), 2, Change::Buried { at: NOW, reason: Reason::Timeout });
        check(
            Outcome::Lost { open: Some(Idempotency::None) },
            0,
            Change::Buried { at: NOW, reason: Reason::UnknownOutcome },
        );
        check(
            Outcome::Lost { open: Some(Idempotency::Header) },
            0,
            Change::Retried { run_at: NOW + Duration::from_secs(2) },
        );
    }

    #[test]
    fn p3_g1_what_is_declined_after_a_lost_answer_is_for_a_person() {
        let declined = || Outcome::Declined(Failure::new(Reason::PolicyDenied, "no consent"));
        check(declined().after(true), 1, Change::Buried { at: NOW, reason: Reason::UnknownOutcome });
        assert_eq!(declined().after(false), declined());
        assert_eq!(Outcome::Failed(failed()).after(true), Outcome::Failed(failed()));
    }

    #[test]
    fn c3_what_will_never_work_is_not_tried_again() {
        check(Outcome::Refused(failed()), 0, Change::Buried { at: NOW, reason: Reason::TargetDown });
        for (status, again) in
            [(400, false), (404, false), (301, false), (408, true), (425, true), (429, true), (500, true), (599, true)]
        {
            let (_, said) = read_status(status, &Statuses::default(), || None).expect("not a success");
            assert_eq!(said != Again::Never, again, "{status}");
        }
        assert_eq!(read_status(204, &Statuses::default(), || None), None);
    }

    #[test]
    fn p3_what_a_gateway_says_of_a_target_is_a_lost_answer_unless_the_integration_knows_better() {
        let usual = Statuses::default();
        let own = Statuses(vec![(429, 429), (500, 599)]);
        let never = Statuses(vec![(429, 429)]);
        let pause = Some(Duration::from_secs(3));
        for status in [502, 504] {
            let again = |retry_on| read_status(status, retry_on, || pause).expect("not a success").1;
            assert_eq!(again(&usual), Again::Unsure(pause), "{status}");
            assert_eq!(again(&own), Again::Later(pause), "{status}");
            assert_eq!(again(&never), Again::Never, "{status}");
        }
        for status in [500, 501, 503, 505, 429] {
            let (_, again) = read_status(status, &Statuses::default(), || pause).expect("not a success");
            assert_eq!(again, Again::Later(pause), "{status}");
        }
    }

    #[test]
    fn c3_retry_after_is_honoured_within_the_cap() {
        let asked = |seconds| Outcome::Failed(Failure { retry_after: Some(Duration::from_secs(seconds)), ..failed() });
        check(asked(60), 0, Change::Retried { run_at: NOW + Duration::from_secs(60) });
        check(asked(1), 0, Change::Retried { run_at: NOW + Duration::from_secs(2) });
        check(asked(90_000), 0, Change::Retried { run_at: NOW + Duration::from_secs(120) });
    }

    #[test]
    fn a_retry_that_would_start_too_late_is_not_made() {
        let retry = RetryPolicy { elapsed_max: Some(Duration::from_secs(3)), ..policy() };
        let past = Past { failures: 1, first_attempt_at: NOW };
        let change = verdict(&Outcome::Failed(failed()), past, &retry, NOW, 0.0);
        assert_eq!(change, Change::Buried { at: NOW, reason: Reason::TargetDown });
    }

    #[test]
    fn t_082_retry_after_is_read_in_seconds_or_as_a_date() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let read = |text| read_retry_after(text, now).map(|pause| pause.as_secs());
        assert_eq!(read("120"), Some(120));
        assert_eq!(read("Tue, 14 Nov 2023 22:14:20 GMT"), Some(60));
        assert_eq!(read("Mon, 13 Nov 2023 22:14:20 GMT"), None);
        assert_eq!(read("-5"), None);
        assert_eq!(read("abc"), None);
        assert_eq!(read(""), None);
        assert_eq!(read("1000000000"), Some(86_400));
        assert_eq!(read("99999999999999999999999"), Some(86_400));
        assert_eq!(read("Fri, 31 Dec 9999 23:59:59 GMT"), Some(86_400));
    }
}
