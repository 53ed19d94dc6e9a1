//! What partners said of contacts, for jobs that had to wait for a limit of ours right after. Who comes back from that is not asked about
//! again: where the same partner is asked and called, each question would use up a moment at which it may be called, and the
//! call would never be made. Who waited for anything else, or was called, is.

use crate::id::JobId;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Who is not back so long after the time that he was told has waited for something else, too.
const KEPT: Duration = Duration::from_secs(300);
/// For more jobs, and of more policies over the steps of one, nothing is kept: theirs is asked for again.
const JOBS_MAX: usize = 10_000;
const PER_JOB_MAX: usize = 100;

/// Whether a contact has agreed, and by which fact.
pub type Agreed = (bool, String);

#[derive(Debug, Default)]
pub struct Answers {
    jobs: HashMap<JobId, Vec<Answer>>,
}

#[derive(Debug)]
struct Answer {
    step: Arc<str>,
    policy: Arc<str>,
    said: Agreed,
    /// The job was sent away for a limit since.
    is_kept: bool,
    until: Timestamp,
}

impl Answers {
    /// What was said for this step of the job, if it waited for nothing but a limit since.
    pub fn kept(&self, job: JobId, step: &str, policy: &str, now: Timestamp) -> Option<Agreed> {
        let mut answers = self.jobs.get(&job)?.iter();
        let kept = answers.find(|answer| answer.is_about(step, policy) && answer.is_kept && now <= answer.until)?;
        Some(kept.said.clone())
    }

    /// A partner was asked, and said this.
    pub fn hear(&mut self, job: JobId, step: &str, policy: &Arc<str>, said: Agreed, now: Timestamp) {
        if self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(&job) {
            self.jobs.retain(|_, answers| answers.iter().any(|answer| now <= answer.until));
            // Those that are there are nearer to their calls.
            if self.jobs.len() >= JOBS_MAX {
                return;
            }
        }
        let answers = self.jobs.entry(job).or_default();
        answers.retain(|answer| now <= answer.until && !answer.is_about(step, policy));
        if answers.len() < PER_JOB_MAX {
            let (step, policy) = (step.into(), policy.clone());
            answers.push(Answer { step, policy, said, is_kept: false, until: now + KEPT });
        }
    }

    /// The job is sent away for a limit, and is to be back at that time.
    pub fn keep(&mut self, job: JobId, back_at: Timestamp, now: Timestamp) {
        let Some(answers) = self.jobs.get_mut(&job) else { return };
        answers.retain(|answer| now <= answer.until);
        for answer in answers {
            (answer.is_kept, answer.until) = (true, back_at + KEPT);
        }
    }

    /// The job makes its call.
    pub fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }
}

impl Answer {
    fn is_about(&self, step: &str, policy: &str) -> bool {
        *self.step == *step && *self.policy == *policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId::from_number(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn yes() -> Agreed {
        (true, "`crm` answered 200".into())
    }

    fn heard() -> Answers {
        let mut answers = Answers::default();
        answers.hear(JOB, "remind", &"marketing".into(), yes(), at(0));
        answers
    }

    fn check(answers: &Answers, now: Timestamp, kept: Option<Agreed>) {
        assert_eq!(answers.kept(JOB, "remind", "marketing", now), kept);
    }

    #[test]
    fn g1_who_is_sent_away_for_a_limit_again_and_again_is_not_asked_about_again_however_slow_that_is() {
        let mut answers = heard();
        for hour in 0..48 {
            let now = at(3_600 * hour);
            answers.keep(JOB, now + Duration::from_secs(3_600), now);
            check(&answers, now + Duration::from_secs(3_600), Some(yes()));
        }
        for (step, policy) in [("remind", "other"), ("other", "marketing")] {
            assert_eq!(answers.kept(JOB, step, policy, at(0)), None);
        }
        assert_eq!(answers.kept(JobId::from_number(2), "remind", "marketing", at(0)), None);
        answers.forget(JOB);
        check(&answers, at(0), None);
    }

    #[test]
    fn g1_who_waited_for_anything_else_is_asked_about_again() {
        let answers = heard();
        check(&answers, at(1), None);
        let mut slept = heard();
        slept.keep(JOB, at(10), at(0));
        check(&slept, at(310), Some(yes()));
        check(&slept, at(311), None);
        // What was said then does not come back with another wait.
        slept.keep(JOB, at(400), at(311));
        check(&slept, at(400), None);
        let mut changed = heard();
        changed.keep(JOB, at(10), at(0));
        changed.hear(JOB, "remind", &"marketing".into(), (false, "`crm` answered 404".into()), at(10));
        check(&changed, at(10), None);
    }

    #[test]
    fn p10_of_too_many_nothing_is_kept_and_those_that_are_over_make_room() {
        let mut answers = heard();
        answers.keep(JOB, at(0), at(0));
        let hear = |answers: &mut Answers, number, now| {
            answers.hear(JobId::from_number(number), "remind", &"marketing".into(), yes(), now);
        };
        (2..JOBS_MAX as u64 + 10).for_each(|number| hear(&mut answers, number, at(1)));
        assert_eq!(answers.jobs.len(), JOBS_MAX);
        check(&answers, at(1), Some(yes()));
        hear(&mut answers, 20_000, at(302));
        assert_eq!(answers.jobs.len(), 1);
        for nth in 0..1_000 {
            answers.hear(JOB, &format!("remind[{nth}]"), &"marketing".into(), yes(), at(302));
        }
        assert_eq!(answers.jobs[&JOB].len(), PER_JOB_MAX);
    }
}
