//! How many of the steps that act outside are protected: a rule decides when their answer is lost, and no person is needed.

use crate::config::Workspace;
use crate::worker::Action;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Steps that act outside.
    pub steps: usize,
    pub unprotected: Vec<Unprotected>,
}

/// A step of which nobody but a person can say, when its answer is lost, whether it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprotected {
    pub worker: String,
    pub step: String,
    pub integration: String,
    /// What to write.
    pub advice: &'static str,
}

impl Protection {
    pub fn of(workspace: &Workspace) -> Protection {
        let mut found = Protection::default();
        for worker in &workspace.workers {
            for (step, action) in worker.all_steps().flat_map(|step| {
                std::iter::once((step, &step.action)).chain(step.compensate.iter().map(move |undo| (step, undo)))
            }) {
                let Some((partner, promise)) = action.outward() else { continue };
                found.steps += 1;
                if !promise.idempotency.is_protected() {
                    found.unprotected.push(Unprotected {
                        worker: worker.name.clone(),
                        step: step.name.to_string(),
                        integration: partner.name.to_string(),
                        advice: advice(action),
                    });
                }
            }
        }
        found
    }

    pub fn protected(&self) -> usize {
        self.steps - self.unprotected.len()
    }

    /// To the nearest; but only all of them are 100. `None` where nothing acts outside.
    pub fn percent(&self) -> Option<usize> {
        let most = if self.unprotected.is_empty() { 100 } else { 99 };
        (self.protected() * 100 + self.steps / 2).checked_div(self.steps).map(|percent| percent.min(most))
    }
}

pub(crate) fn advice(action: &Action) -> &'static str {
    match action {
        Action::Script(_) => "write `on_unknown: retry` if it hands IDEMPOTENCY_KEY on to a target that honours it",
        Action::Http(http) if ["GET", "HEAD", "PUT", "DELETE"].contains(&http.method.as_str()) => {
            "write `idempotency: natural` if doing it twice is doing it once"
        }
        _ => {
            "write `idempotency: header` if the target honours our key, `natural` if doing it twice is doing it once, or \
             `lookup:` if it can be asked"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Files, load};

    fn check(steps: &str) -> Protection {
        let files = Files(vec![
            ("flows/f.yml".into(), "version: 1\nname: f\ntriggers:\n  - http: {path: /f}\nsteps:\n  - name: enqueue\n    queue: {name: q}\n".into()),
            ("queues.yml".into(), "queues:\n  - name: q\n".into()),
            ("workers/w.yml".into(), format!("version: 1\nname: w\nconsumes: {{queue: q}}\nrun:\n{steps}")),
        ]);
        match load(&files) {
            Ok((workspace, _)) => Protection::of(&workspace),
            Err(problems) => panic!("{problems:#?}"),
        }
    }

    #[test]
    fn d5_the_share_of_protected_effects_counts_what_acts_outside() {
        let found = check(
            "  - name: charge\n    http: {url: 'http://a.example/x', idempotency: header}
  - name: mail\n    http: {url: 'http://b.example/x'}
  - name: shape\n    transform: {a: 1}
  - name: ask\n    http: {url: 'http://c.example/x', method: GET}\n",
        );
        assert_eq!((found.steps, found.protected(), found.percent()), (3, 1, Some(33)));
        let told: Vec<_> = found.unprotected.iter().map(|step| (&*step.step, &*step.integration)).collect();
        assert_eq!(told, [("mail", "b.example"), ("ask", "c.example")]);
        assert!(found.unprotected[0].advice.contains("`idempotency: header`"));
        assert!(found.unprotected[1].advice.contains("`idempotency: natural`"));
    }

    #[test]
    fn d5_where_nothing_acts_outside_there_is_no_share() {
        assert_eq!(check("  - name: shape\n    transform: {a: 1}\n").percent(), None);
    }
}
