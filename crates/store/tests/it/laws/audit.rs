//! The audit: every act is on record, and nobody changes the record unnoticed.

use super::world::*;
use clinch_core::audit::{Broken, Chain, Who};
use clinch_core::death::Reason;
use clinch_core::sender::{Sender, TokenId};
use clinch_store::read::{AuditFilter, AuditRow, AuditWalk, Inspected};
use clinch_store::{Act, ReviveAsk, Revived};
use serde_json::{Value, json};
use std::collections::HashSet;
use tokio::task::JoinSet;

/// Something that leaves a row.
async fn acts(world: &World, no: u64) {
    let sender = Sender {
        name: "shop".parse().expect("a name"),
        token: TokenId::from_bytes(no.to_be_bytes()),
        issued_at: later(no),
        expires_at: None,
    };
    world
        .issue(sender, by(if no.is_multiple_of(2) { "maya" } else { "ben" }, &format!("reason {no}"), later(no)))
        .await
        .expect("done");
}

async fn inspect(world: &World) -> Inspected {
    world.inspect(None).await.expect("read")
}

fn numbers(rows: &[AuditRow]) -> Vec<u64> {
    rows.iter().map(|row| row.no).collect()
}

pub async fn g3_every_act_is_on_record_with_who_from_where_before_after_and_why(world: World) {
    let dead = world.dead("k", later(0), Reason::Timeout).await;
    let ask = ReviveAsk { record: by("maya", "INC-482\0", later(10)), ..replay(dead.job, later(10)) };
    assert_eq!(world.revive(ask).await.expect("answered"), Revived::Revived { replays: 1 });
    let act = Act { action: "keys.rotate", object: "key_1".into(), job: None, before: Value::Null, after: json!([1]) };
    world.note(act, Who::clinch("keeper").record("it was time", later(11))).await.expect("noted");
    let rows = world.record().await;
    let [note, replay] = &rows[..] else { panic!("{rows:?}") };
    let AuditRow { no, at, actor, origin, action, object, job, before, after, reason, .. } = replay;
    assert_eq!((*no, *at, actor.as_str(), origin.as_str()), (1, later(10), "maya", "api 192.0.2.7"));
    assert_eq!((action.as_str(), object, *job), ("job.replay", &dead.job.to_string(), Some(dead.job)));
    let told = |text: &Option<String>| -> Value { serde_json::from_str(text.as_deref().expect("told")).expect("JSON") };
    let (before, after) = (told(before), told(after));
    assert_eq!(
        (&before["state"], &before["reason"], &before["replays"]),
        (&json!("dead"), &json!("timeout"), &json!(0))
    );
    assert_eq!((&after["state"], &after["replays"]), (&json!("queued"), &json!(1)));
    assert_eq!(reason, "INC-482\u{fffd}", "both engines keep the same text");
    assert_eq!((note.no, note.actor.as_str(), note.origin.as_str(), note.job), (2, "clinch", "keeper", None));
    assert_eq!((&note.before, note.after.as_deref()), (&None, Some("[1]")));
    assert_eq!(world.story(dead.job).await.audit, std::slice::from_ref(replay));
    world.adds_up().await;
}

pub async fn g3_the_audit_is_a_chain_that_goes_on_after_a_kill(world: World) {
    assert_eq!(inspect(&world).await, Inspected { head: Chain::START, broken: None });
    for no in 0..5 {
        acts(&world, no).await;
    }
    let before = inspect(&world).await;
    assert_eq!((before.head.count, &before.broken), (5, &None));
    let world = world.after_a_kill().await;
    assert_eq!(inspect(&world).await, before);
    acts(&world, 5).await;
    let rows = world.record().await;
    assert_eq!(numbers(&rows), [6, 5, 4, 3, 2, 1]);
    let after = inspect(&world).await;
    assert_eq!((after.head.count, after.head.hash, after.broken), (6, rows[0].hash, None));
    for row in &rows {
        assert_eq!(world.inspect(Some(row.hash)).await.expect("read").broken, None, "each may have been noted");
    }
    assert_eq!(world.report(later(0)).await.audit_rows, 6);
    world.adds_up().await;
}

pub async fn g3_many_who_act_at_once_make_one_chain(world: World) {
    const EACH: u64 = 20;
    let mut dead = Vec::new();
    for no in 0..EACH {
        dead.push(world.dead(&format!("k{no}"), later(0), Reason::Timeout).await.job);
    }
    let mut acting = JoinSet::new();
    for (no, job) in (0..).zip(dead) {
        let store = world.clone();
        acting.spawn(async move {
            assert_eq!(store.revive(replay(job, later(10))).await.expect("revived"), Revived::Revived { replays: 1 });
            let act = Act { action: "x.y", object: no.to_string(), job: None, before: Value::Null, after: Value::Null };
            store.note(act, by("maya", "", later(11))).await.expect("noted");
        });
    }
    acting.join_all().await;
    let found = inspect(&world).await;
    assert_eq!((found.head.count, found.broken), (2 * EACH, None));
    let objects: HashSet<String> = world.record().await.into_iter().map(|row| row.object).collect();
    assert_eq!(objects.len() as u64, 2 * EACH, "each is there once");
    world.adds_up().await;
}

pub async fn g3_a_row_is_neither_changed_nor_removed_in_the_ordinary_way(world: World) {
    acts(&world, 0).await;
    for sql in ["UPDATE audit SET actor = 'eve'", "DELETE FROM audit WHERE id = 1"] {
        let said = world.engine().refusal(sql).await;
        assert!(said.contains("only added to"), "{said}");
    }
    assert_eq!(world.record().await.len(), 1);
    world.adds_up().await;
}

pub async fn g3_whoever_changes_removes_adds_or_swaps_a_row_by_force_is_found_out(world: World) {
    for no in 0..6 {
        acts(&world, no).await;
    }
    let noted = world.record().await[2].hash;
    let columns = "at, actor, origin, action, object, job, before, after, reason, hash";
    let copy =
        |id, from| format!("INSERT INTO audit (id, {columns}) SELECT {id}, {columns} FROM audit WHERE id = {from}");
    for (sql, broken) in [
        ("UPDATE audit SET actor = 'eve' WHERE id = 3".to_string(), Broken::Changed { no: 3 }),
        ("UPDATE audit SET at = at + 1 WHERE id = 3".to_string(), Broken::Changed { no: 3 }),
        ("UPDATE audit SET before = '' WHERE id = 1".to_string(), Broken::Changed { no: 1 }),
        ("UPDATE audit SET job = 1 WHERE id = 6".to_string(), Broken::Changed { no: 6 }),
        ("UPDATE audit SET hash = (SELECT hash FROM audit WHERE id = 1) WHERE id = 5".to_string(), Broken::Changed { no: 5 }),
        ("DELETE FROM audit WHERE id = 1".to_string(), Broken::Removed { no: 1 }),
        ("DELETE FROM audit WHERE id = 4".to_string(), Broken::Removed { no: 4 }),
        ("DELETE FROM audit WHERE id = 6".to_string(), Broken::Cut { no: 6, count: 6 }),
        ("DELETE FROM audit".to_string(), Broken::Cut { no: 1, count: 6 }),
        (copy(7, 6), Broken::Added { no: 7, count: 6 }),
        (
            "UPDATE audit SET id = 10 WHERE id = 2; UPDATE audit SET id = 2 WHERE id = 3; UPDATE audit SET id = 3 WHERE id = 10"
                .to_string(),
            Broken::Changed { no: 2 },
        ),
    ] {
        let other = world.after_a_kill().await;
        other.engine().forge(&sql).await;
        assert_eq!(inspect(&other).await.broken, Some(broken.clone()), "{sql}");
        assert_eq!(other.report(later(0)).await.problems, [broken.to_string()], "{sql}");
    }
    let other = world.emptied(keys(KEY)).await;
    acts(&other, 0).await;
    assert_eq!(inspect(&other).await.broken, None);
    let found = other.inspect(Some(noted)).await.expect("read");
    assert_eq!(found.broken, Some(Broken::NotNoted { noted }), "it is another audit");
}

pub async fn g3_the_audit_is_searched_and_paged(world: World) {
    for no in 0..7 {
        acts(&world, no).await;
    }
    world.remove_user("eve".parse().expect("a name"), by("maya", "", later(9))).await.expect("answered");
    let find = async |filter: AuditFilter| numbers(&world.audit(filter).await.expect("read"));
    let all = || AuditFilter::last(100);
    let text = |text: &str| Some(text.to_string());
    assert_eq!(find(AuditFilter { actor: text("ben"), ..all() }).await, [6, 4, 2]);
    assert_eq!(find(AuditFilter { action: text("token.issue"), ..all() }).await.len(), 7);
    assert_eq!(find(AuditFilter { action: text("token.*"), ..all() }).await.len(), 7);
    for action in ["token", "token.", "job.*", "token.issue.*", "%"] {
        assert_eq!(find(AuditFilter { action: text(action), ..all() }).await, [0u64; 0], "{action}");
    }
    let object = TokenId::from_bytes(3u64.to_be_bytes()).to_string();
    assert_eq!(find(AuditFilter { object: Some(object), ..all() }).await, [4]);
    assert_eq!(find(AuditFilter { since: Some(later(2)), until: Some(later(5)), ..all() }).await, [5, 4, 3]);
    let back = |before| AuditFilter { walk: AuditWalk::Back { before }, limit: 3, ..all() };
    assert_eq!((find(back(None)).await, find(back(Some(5))).await), (vec![7, 6, 5], vec![4, 3, 2]));
    let forth = |after| AuditFilter { walk: AuditWalk::Forth { after }, limit: 3, ..all() };
    assert_eq!((find(forth(0)).await, find(forth(6)).await), (vec![1, 2, 3], vec![7]));
}

pub async fn g3_another_workspace_is_on_record_once(world: World) {
    for (at, hash) in [1, 1, 2, 1].into_iter().enumerate() {
        world.starts_with(hash, at as u64).await;
    }
    let world = world.after_a_stop().await;
    world.starts_with(1, 9).await;
    let rows = world.record().await;
    assert_eq!(rows.iter().map(|row| row.at).collect::<Vec<_>>(), [later(3), later(2), later(0)]);
    assert!(rows.iter().all(|row| (&*row.actor, &*row.action) == ("clinch", "config.activate")));
    assert_eq!((rows[2].before.as_deref(), rows[1].before.as_deref()), (None, Some(r#"{"version":1}"#)));
    world.adds_up().await;
}
