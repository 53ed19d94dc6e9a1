//! `uses:` a few lines of Node, Python or bash, with the event in their environment.

use super::{Outward, http};
use crate::effects::{Act, Home, Question, ScriptCall};
use crate::names;
use crate::worker::scope::Scope;
use aws_lc_rs::digest;
use clinch_core::attempt::Failure;
use clinch_core::expr::BadExpr;
use clinch_core::integration::{Integration, Promise};
use clinch_core::key::IdempotencyKey;
use clinch_core::payload::Payload;
use clinch_core::saga;
use clinch_core::script::ScriptAction;
use clinch_store::Claim;
use std::sync::Arc;

impl Outward for ScriptAction {
    fn partner(&self) -> &Arc<Integration> {
        &self.partner
    }

    fn promise(&self) -> &Promise {
        &self.promise
    }

    fn plan(
        &self,
        step: &str,
        claim: &Claim,
        payload: &Payload,
        scope: &mut Scope<'_>,
    ) -> Result<Box<dyn Act>, Failure> {
        let house = scope.house();
        let secrets: Vec<String> = self.secrets.iter().filter_map(|name| house.secrets.get(name)).collect();
        // What undoes a step, or does it again, is another effect than the step was.
        let is_another = saga::step_of(step) != step;
        let key = match names::key(claim.into(), payload) {
            "" => None,
            key => (!is_another).then(|| key.to_string()),
        };
        let key = key.unwrap_or_else(|| IdempotencyKey::of(claim.lease.job, step).as_str().to_string());
        let body = String::from_utf8(payload.body.to_vec());
        let mut env = vec![
            (
                "BODY".to_string(),
                body.map_err(|_| BadExpr("the event's body is not text, which a script needs".into()))?,
            ),
            ("IDEMPOTENCY_KEY".to_string(), key),
            ("JOB_ID".to_string(), claim.lease.job.to_string()),
            ("EVENT_ID".to_string(), claim.event.to_string()),
            ("ATTEMPT".to_string(), (claim.attempts + 1).to_string()),
        ];
        for (name, value) in &self.env {
            env.push((name.clone(), http::text(value, scope)?));
        }
        if let Some((name, _)) = env.iter().find(|(_, value)| value.contains('\0')) {
            return Err(BadExpr(format!("`{name}` has a zero byte in it, which no environment can hold")).into());
        }
        let home = Home {
            id: home(self, &secrets),
            language: self.runtime.language,
            text: self.text.clone(),
            memory_bytes_max: self.memory_bytes_max,
            isolation: self.isolation,
        };
        Ok(Box::new(ScriptCall::new(home, env, secrets, self.timeout)))
    }

    /// Nobody can be asked what a script did.
    fn question(&self, _scope: &mut Scope<'_>) -> Option<Result<Question, BadExpr>> {
        None
    }
}

/// A secret that has changed makes another home: modules keep what they once read of their environment.
fn home(script: &ScriptAction, secrets: &[String]) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(&script.fingerprint);
    for secret in secrets {
        hash.update(&(secret.len() as u64).to_be_bytes());
        hash.update(secret.as_bytes());
    }
    hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}
