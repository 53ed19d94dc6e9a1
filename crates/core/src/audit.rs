//! The audit: who did what to which thing, from where, why, and what changed by it. Each row is chained to the one before it,
//! and how far the chain goes is kept apart: a row that is changed, removed, added or swapped does not fit any more.

use crate::id::JobId;
use crate::time::Timestamp;
use crate::user::{self, Permission, Role};
use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Somebody who acts, from where, and what he may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub name: String,
    /// The address of a caller (`api 127.0.0.1`), or the room in which clinch acts by itself.
    pub origin: String,
    pub role: Role,
    /// Only what came in through this source, if his token says so.
    pub source: Option<Arc<str>>,
}

impl Who {
    /// Nobody asked for it: a rule did.
    pub fn clinch(room: &str) -> Who {
        Who { name: user::CLINCH.into(), origin: room.into(), role: Role::Admin, source: None }
    }

    pub fn record(&self, reason: impl Into<String>, at: Timestamp) -> Record {
        let right = if user::is_own(&self.name) { Right::Given } else { Right::User(self.role) };
        Record { actor: self.name.clone(), origin: self.origin.clone(), right, reason: reason.into(), at }
    }
}

/// Who does something, from where, why and when: kept on record with what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub actor: String,
    pub origin: String,
    pub right: Right,
    pub reason: String,
    pub at: Timestamp,
}

/// By what right somebody acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Nobody is asked: it is clinch itself or the admin, or it goes on with what somebody was allowed to begin.
    Given,
    /// A user, who came with this role. Whether he still has it is asked where it is written down.
    User(Role),
    /// The workspace names him. He need not be a user; if he is one, his role counts.
    Named,
}

/// Somebody may not do this, and nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{actor} may not do this: {action} needs a role that allows `{}`", .needs.map_or("nobody", Permission::word))]
pub struct NotAllowed {
    pub actor: String,
    pub action: &'static str,
    /// `None`: no user may.
    pub needs: Option<Permission>,
}

impl Record {
    /// Whether he may do this, asked where it is written down. `now` is the role of the user of this name at that moment: it may
    /// be another than the one he came with, and who was removed meanwhile has none.
    pub fn allows(&self, action: &'static str, now: Option<Role>) -> Result<(), NotAllowed> {
        let needs = Permission::of_act(action);
        let may = |role: Role| needs.is_some_and(|needs| role.may(needs));
        let is_allowed = match self.right {
            Right::Given => true,
            Right::User(then) => may(then) && now.is_some_and(may),
            Right::Named => now.is_none_or(may),
        };
        match is_allowed {
            true => Ok(()),
            false => Err(NotAllowed { actor: self.actor.clone(), action, needs }),
        }
    }
}

/// What was done. No personal data: what is on record cannot be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// A dotted word: `job.replay`.
    pub action: &'static str,
    /// What it was done to: an id, or `kind:name`.
    pub object: String,
    pub job: Option<JobId>,
    /// How it was and how it is, in a few words of JSON; null where there is nothing to say.
    pub before: Value,
    pub after: Value,
}

/// An act as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The first is 1, and none is left out.
    pub no: u64,
    pub at: Timestamp,
    pub actor: String,
    pub origin: String,
    pub action: String,
    pub object: String,
    pub job: Option<JobId>,
    pub before: Option<String>,
    pub after: Option<String>,
    pub reason: String,
    pub hash: Digest,
}

/// What became of what, for people.
pub fn change(before: Option<&str>, after: Option<&str>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!("{before} → {after}"),
        (Some(before), None) => format!("{before} → gone"),
        (None, Some(after)) => after.into(),
        (None, None) => String::new(),
    }
}

impl Row {
    /// Of the row that follows one with the hash `before`. Each part is told with its length, so that no two rows are
    /// told alike.
    fn hash_after(&self, before: Digest) -> Digest {
        let mut told = Context::new(&SHA256);
        let mut part = |bytes: &[u8]| {
            told.update(&(bytes.len() as u64).to_be_bytes());
            told.update(bytes);
        };
        part(b"clinch audit 1");
        part(&before.0);
        part(&self.no.to_be_bytes());
        part(&self.at.as_micros().to_be_bytes());
        for text in [&self.actor, &self.origin, &self.action, &self.object, &self.reason] {
            part(text.as_bytes());
        }
        part(self.job.map_or_else(String::new, |job| job.to_string()).as_bytes());
        for text in [&self.before, &self.after] {
            match text {
                None => part(&[]),
                // A text that is empty is another thing than none.
                Some(text) => part(&[&[1], text.as_bytes()].concat()),
            }
        }
        Digest(told.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// The hash of a row and, through the one before it, of all up to there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the hash of a row of the audit; one has 64 digits of 0-9 and a-f")]
pub struct BadDigest(String);

impl FromStr for Digest {
    type Err = BadDigest;
    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let bytes = HEXLOWER.decode(text.trim().to_ascii_lowercase().as_bytes()).ok();
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) => Ok(Digest(bytes)),
            None => Err(BadDigest(text.chars().take(80).collect())),
        }
    }
}

/// A chain up to some row: how many there are, and the hash of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    pub count: u64,
    pub hash: Digest,
}

impl Chain {
    /// Before the first row.
    pub const START: Chain = Chain { count: 0, hash: Digest([0; 32]) };

    /// The row that comes next, which is the last from here on.
    pub fn append(&mut self, act: &Act, record: &Record) -> Row {
        // One of the engines cannot keep a NUL, and a chain must stay what it is when it is moved.
        let text = |text: &str| text.replace('\0', "\u{fffd}");
        let json = |value: &Value| (!value.is_null()).then(|| value.to_string());
        let mut row = Row {
            no: self.count + 1,
            at: record.at,
            actor: text(&record.actor),
            origin: text(&record.origin),
            action: act.action.into(),
            object: text(&act.object),
            job: act.job,
            before: json(&act.before),
            after: json(&act.after),
            reason: text(&record.reason),
            hash: self.hash,
        };
        row.hash = row.hash_after(self.hash);
        *self = Chain { count: row.no, hash: row.hash };
        row
    }
}

/// Where a chain does not fit, first of all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("row {no} of the audit is not there")]
    Removed { no: u64 },
    #[error("row {no} of the audit, or its place, was changed: it does not follow from the row before it")]
    Changed { no: u64 },
    #[error("row {no} of the audit was added: it has {count} rows by its own count")]
    Added { no: u64, count: u64 },
    #[error("the audit was cut: it ends before row {no} and has {count} rows by its own count")]
    Cut { no: u64, count: u64 },
    #[error("the end of the audit was changed: row {no} is the last and does not have the hash that was kept of it")]
    End { no: u64 },
    #[error("the audit was written anew: no row of it has the hash {noted}")]
    NotNoted { noted: Digest },
}

impl Broken {
    /// The first row that does not fit; `None`: each of them fits the others, but all are of another audit.
    pub const fn no(&self) -> Option<u64> {
        match self {
            Broken::Removed { no }
            | Broken::Changed { no }
            | Broken::Added { no, .. }
            | Broken::Cut { no, .. }
            | Broken::End { no } => Some(*no),
            Broken::NotNoted { .. } => None,
        }
    }
}

/// A walk along a chain, from its first row.
#[derive(Clone, Debug)]
pub struct Inspection {
    head: Chain,
    walked: Chain,
    /// A hash that somebody has noted elsewhere, until it is met.
    noted: Option<Digest>,
}

impl Inspection {
    /// `head` is what was kept apart. Who may write everything may also write a new chain with a head that fits: only a
    /// hash that was noted elsewhere tells.
    pub fn new(head: Chain, noted: Option<Digest>) -> Inspection {
        Inspection { head, walked: Chain::START, noted: noted.filter(|noted| *noted != Chain::START.hash) }
    }

    pub fn walked(&self) -> Chain {
        self.walked
    }

    /// The next row, in order of their numbers.
    pub fn look(&mut self, row: &Row) -> Result<(), Broken> {
        let Chain { count, hash } = self.walked;
        if count >= self.head.count {
            return Err(Broken::Added { no: row.no, count: self.head.count });
        }
        if row.no > count + 1 {
            return Err(Broken::Removed { no: count + 1 });
        }
        if row.no != count + 1 || row.hash != row.hash_after(hash) {
            return Err(Broken::Changed { no: row.no });
        }
        self.noted = self.noted.filter(|noted| *noted != row.hash);
        self.walked = Chain { count: row.no, hash: row.hash };
        Ok(())
    }

    /// After the last row.
    pub fn end(&self) -> Result<(), Broken> {
        let Chain { count, hash } = self.walked;
        if count < self.head.count {
            return Err(Broken::Cut { no: count + 1, count: self.head.count });
        }
        if hash != self.head.hash {
            return Err(Broken::End { no: count });
        }
        self.noted.map_or(Ok(()), |noted| Err(Broken::NotNoted { noted }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn chained(acts: &[(Act, Record)]) -> (Vec<Row>, Chain) {
        let mut chain = Chain::START;
        let rows = acts.iter().map(|(act, record)| chain.append(act, record)).collect();
        (rows, chain)
    }

    fn inspect(rows: &[Row], head: Chain, noted: Option<Digest>) -> Result<(), Broken> {
        let mut inspection = Inspection::new(head, noted);
        rows.iter().try_for_each(|row| inspection.look(row))?;
        inspection.end()
    }

    fn acts() -> impl Strategy<Value = Vec<(Act, Record)>> {
        let value = prop_oneof![Just(Value::Null), any::<u8>().prop_map(|n| json!({ "n": n })), Just(json!(""))];
        let act = ("[a-z]{0,6}", any::<Option<u64>>(), value.clone(), value, "\\PC{0,8}\0?", any::<i64>());
        let act = act.prop_map(|(object, job, before, after, reason, at)| {
            let act = Act { action: "job.replay", object, job: job.map(JobId::from_number), before, after };
            (act, Who::clinch("keeper").record(reason, Timestamp::from_micros(at)))
        });
        proptest::collection::vec(act, 1..12)
    }

    /// Every part of a row, made another.
    fn changed(row: &Row, part: usize) -> Row {
        let mut row = row.clone();
        let other = |text: &mut String| text.push('x');
        match part {
            0 => row.at = Timestamp::from_micros(row.at.as_micros() ^ 1),
            1 => other(&mut row.actor),
            2 => other(&mut row.origin),
            3 => other(&mut row.action),
            4 => other(&mut row.object),
            5 => other(&mut row.reason),
            6 => row.job = row.job.map_or(Some(JobId::from_number(0)), |_| None),
            7 => row.before = row.before.map_or(Some(String::new()), |_| None),
            8 => row.after = row.after.map_or(Some(String::new()), |_| None),
            _ => row.hash.0[7] ^= 1,
        }
        row
    }

    proptest! {
        #[test]
        fn g3_a_chain_fits_as_it_was_written(acts in acts()) {
            let (rows, head) = chained(&acts);
            prop_assert_eq!(inspect(&rows, head, None), Ok(()));
            for row in &rows {
                prop_assert_eq!(inspect(&rows, head, Some(row.hash)), Ok(()), "any row may have been noted");
            }
        }

        #[test]
        fn g3_a_changed_row_is_found(acts in acts(), at in any::<prop::sample::Index>(), part in 0..10usize) {
            let (mut rows, head) = chained(&acts);
            let at = at.index(rows.len());
            rows[at] = changed(&rows[at], part);
            prop_assert_eq!(inspect(&rows, head, None).expect_err("changed").no(), Some(at as u64 + 1));
        }

        #[test]
        fn g3_a_removed_row_is_found(acts in acts(), at in any::<prop::sample::Index>(), renumbered in any::<bool>()) {
            let (mut rows, head) = chained(&acts);
            let at = at.index(rows.len());
            rows.remove(at);
            if renumbered {
                rows[at..].iter_mut().for_each(|row| row.no -= 1);
            }
            prop_assert_eq!(inspect(&rows, head, None).expect_err("removed").no(), Some(at as u64 + 1));
        }

        #[test]
        fn g3_an_added_row_is_found(acts in acts(), at in any::<prop::sample::Index>(), renumbered in any::<bool>()) {
            let (mut rows, head) = chained(&acts);
            let at = at.index(rows.len() + 1);
            // The best that can be added: one that follows from the row before it.
            let before = at.checked_sub(1).map_or(Chain::START, |last| Chain { count: rows[last].no, hash: rows[last].hash });
            let other = Act { object: "another".into(), ..acts[0].0.clone() };
            rows.insert(at, { before }.append(&other, &acts[0].1));
            if renumbered {
                rows[at + 1..].iter_mut().for_each(|row| row.no += 1);
            }
            let found = inspect(&rows, head, None).expect_err("added").no().expect("a row");
            prop_assert!((at as u64 + 1..=at as u64 + 2).contains(&found), "{found} of {at}");
        }

        #[test]
        fn g3_swapped_rows_are_found(acts in acts(), one in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(), renumbered in any::<bool>()) {
            let (mut rows, head) = chained(&acts);
            let (one, other) = (one.index(rows.len()), other.index(rows.len()));
            prop_assume!(one != other);
            rows.swap(one, other);
            if renumbered {
                let (no_of_one, no_of_other) = (rows[one].no, rows[other].no);
                (rows[one].no, rows[other].no) = (no_of_other, no_of_one);
            }
            prop_assert_eq!(inspect(&rows, head, None).expect_err("swapped").no().map(|no| no > one.min(other) as u64), Some(true));
        }

        #[test]
        fn g3_a_cut_tail_is_found_and_so_is_a_longer_one(acts in acts(), at in any::<prop::sample::Index>()) {
            let (rows, head) = chained(&acts);
            let kept = at.index(rows.len());
            let count = head.count;
            prop_assert_eq!(inspect(&rows[..kept], head, None), Err(Broken::Cut { no: kept as u64 + 1, count }));
            let (_, shorter) = chained(&acts[..kept]);
            prop_assert_eq!(
                inspect(&rows, shorter, None),
                Err(Broken::Added { no: kept as u64 + 1, count: kept as u64 })
            );
        }

        #[test]
        fn g3_an_audit_that_was_written_anew_is_found_by_a_hash_that_was_noted(acts in acts(), at in any::<prop::sample::Index>()) {
            let (rows, _) = chained(&acts);
            let at = at.index(rows.len());
            let mut forged = acts;
            forged[at].1.actor = "somebody else".into();
            let (forged, head) = chained(&forged);
            prop_assert_eq!(inspect(&forged, head, None), Ok(()), "by itself it fits");
            let noted = rows[at..].last().expect("there is one").hash;
            prop_assert_eq!(inspect(&forged, head, Some(noted)), Err(Broken::NotNoted { noted }));
        }
    }

    #[test]
    fn g3_the_end_that_is_kept_apart_must_fit_the_last_row() {
        let act = Act { action: "a", object: String::new(), job: None, before: Value::Null, after: Value::Null };
        let (rows, head) = chained(&[(act, Who::clinch("x").record("", Timestamp::default()))]);
        let other = Chain { hash: Digest([1; 32]), ..head };
        assert_eq!(inspect(&rows, other, None), Err(Broken::End { no: 1 }));
        assert_eq!(inspect(&[], Chain::START, Some(Chain::START.hash)), Ok(()));
        assert_eq!(head.hash.to_string().parse(), Ok(head.hash));
        assert!("abc".parse::<Digest>().is_err());
    }

    #[test]
    fn k1_what_somebody_may_is_asked_of_the_role_that_he_came_with_and_of_the_one_that_he_has_now() {
        let record = |name: &str, role| {
            Who { name: name.into(), origin: "api".into(), role, source: None }.record("", Timestamp::from_micros(1))
        };
        let check = |record: &Record, now, is_allowed: bool| {
            assert_eq!(record.allows("job.replay", now).is_ok(), is_allowed, "{record:?} {now:?}");
        };
        let maya = record("maya", Role::Operator);
        check(&maya, Some(Role::Operator), true);
        check(&maya, Some(Role::Viewer), false);
        check(&maya, None, false);
        check(&record("maya", Role::Viewer), Some(Role::Admin), false);
        let named = Record { right: Right::Named, ..maya };
        check(&named, None, true);
        check(&named, Some(Role::Approver), false);
        check(&Record { right: Right::Given, ..named }, Some(Role::Viewer), true);
        check(&record("admin", Role::Admin), None, true);
        check(&Who::clinch("keeper").record("", Timestamp::from_micros(1)), None, true);
        assert!(record("maya", Role::Admin).allows("config.activate", Some(Role::Admin)).is_err(), "no user does it");
    }

    /// Whoever checks an export elsewhere relies on it.
    #[test]
    fn g3_the_hash_of_a_row_is_the_same_for_ever() {
        let act = Act {
            action: "job.replay",
            object: "job_0000000000007".into(),
            job: Some(JobId::from_number(7)),
            before: json!({"state": "dead"}),
            after: Value::Null,
        };
        let who = Who { name: "maya".into(), origin: "api 127.0.0.1".into(), role: Role::Operator, source: None };
        let row = { Chain::START }.append(&act, &who.record("INC-482", Timestamp::from_micros(1_790_000_000_000_000)));
        assert_eq!(row.hash.to_string(), "90b193ddb3508099ac825195456066f38b1335eb1dccb6808b5e4a8cc2cc68c9");
    }
}
