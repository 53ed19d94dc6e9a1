//! What operators switch: set and taken away, on record.

use super::world::*;
use clinch_core::control::Control;
use clinch_core::time::Timestamp;
use clinch_store::read::{AuditFilter, AuditRow};
use clinch_store::{CONTROL_KEPT, SteerAsk, Steered};
use std::time::Duration;

fn set(name: &str, value: &str, at: Timestamp) -> SteerAsk {
    let record = by("ada", "a quiet night", at);
    SteerAsk { name: name.into(), value: Some(value.into()), until: None, expect: None, action: "pause.set", record }
}

fn unset(name: &str, at: Timestamp) -> SteerAsk {
    SteerAsk { value: None, action: "pause.end", ..set(name, "", at) }
}

async fn steers(world: &World, ask: SteerAsk) -> (Option<Control>, i64) {
    match world.steer(ask).await.expect("answered") {
        Steered::Steered { before, version } => (before, version),
        Steered::Conflict(there) => panic!("in conflict with {there:?}"),
    }
}

async fn values(world: &World) -> Vec<(String, String)> {
    let told = |control: Control| (control.name.to_string(), control.value);
    world.controls().await.expect("read").into_iter().map(told).collect()
}

/// The record, the newest first.
async fn audit(world: &World) -> Vec<AuditRow> {
    world.audit(AuditFilter { limit: 50, ..AuditFilter::default() }).await.expect("read")
}

pub async fn e6_a_control_is_set_on_record_and_survives_a_kill(world: World) {
    assert_eq!(world.controls().await.expect("read"), []);
    let until = Some(later(60));
    let (before, version) =
        steers(&world, SteerAsk { until, ..set("pause/queue:a", r#"{"reason":"x"}"#, later(1)) }).await;
    assert_eq!(before, None);
    steers(&world, set("pause/flow:b", "{}", later(2))).await;
    let expected = Control {
        name: "pause/queue:a".into(),
        value: r#"{"reason":"x"}"#.into(),
        version,
        at: later(1),
        actor: "ada".into(),
        until,
    };
    for world in [world.after_a_kill().await, world] {
        let controls = world.controls().await.expect("read");
        assert_eq!((controls.len(), &controls[1]), (2, &expected), "by name");
        let audit = audit(&world).await;
        let told: Vec<_> =
            audit.iter().map(|row| (row.actor.as_str(), row.action.as_str(), row.reason.as_str())).collect();
        assert_eq!(told, [("ada", "pause.set", "a quiet night"); 2]);
        let after: serde_json::Value =
            serde_json::from_str(audit[1].after.as_deref().expect("it is told")).expect("JSON");
        assert_eq!(
            after,
            serde_json::json!({"value": {"reason": "x"}, "until": later(60).to_string(), "version": version})
        );
        assert_eq!((audit[1].object.as_str(), &audit[1].before), ("queue:a", &None));
        world.adds_up().await;
    }
}

pub async fn e6_a_control_is_changed_and_taken_away_once(world: World) {
    let (_, first) = steers(&world, set("pause/replays", "1", later(1))).await;
    let (before, second) = steers(&world, set("pause/replays", "2", later(2))).await;
    assert_eq!(before.map(|before| (before.value, before.version)), Some(("1".into(), first)));
    assert!(second > first);
    let (before, none) = steers(&world, unset("pause/replays", later(3))).await;
    assert_eq!((before.map(|before| before.version), none), (Some(second), 0));
    // What is not there is taken away without a word.
    assert_eq!(steers(&world, unset("pause/replays", later(4))).await, (None, 0));
    assert_eq!(values(&world).await, []);
    let actions: Vec<_> = audit(&world).await.into_iter().map(|row| row.action).collect();
    assert_eq!(actions, ["pause.end", "pause.set", "pause.set"]);
    let (_, third) = steers(&world, set("pause/replays", "3", later(5))).await;
    assert!(third > second, "a version is never used again");
}

pub async fn e6_who_expects_another_version_changes_nothing(world: World) {
    let expecting = |expect, ask: SteerAsk| SteerAsk { expect: Some(expect), ..ask };
    let (_, version) = steers(&world, expecting(0, set("set/x", "1", later(1)))).await;
    for wrong in [expecting(0, set("set/x", "2", later(2))), expecting(version + 1, unset("set/x", later(2)))] {
        match world.steer(wrong).await.expect("answered") {
            Steered::Conflict(there) => assert_eq!(there.map(|there| there.version), Some(version)),
            steered => panic!("not refused: {steered:?}"),
        }
    }
    assert_eq!(values(&world).await, [("set/x".into(), "1".into())]);
    assert_eq!(audit(&world).await.len(), 1);
    steers(&world, expecting(version, set("set/x", "2", later(3)))).await;
}

pub async fn e6_of_many_who_expect_the_same_one_steers(world: World) {
    let tasks: Vec<_> = (0..20)
        .map(|nth| {
            let (store, ask) =
                (world.clone(), SteerAsk { expect: Some(0), ..set("set/x", &nth.to_string(), later(1)) });
            tokio::spawn(async move { store.steer(ask).await.expect("answered") })
        })
        .collect();
    let mut steered = 0;
    for task in tasks {
        steered += usize::from(matches!(task.await.expect("it ends"), Steered::Steered { .. }));
    }
    assert_eq!((steered, values(&world).await.len(), audit(&world).await.len()), (1, 1, 1));
}

pub async fn e6_a_control_that_ended_is_kept_for_a_while(world: World) {
    steers(&world, SteerAsk { until: Some(later(10)), ..set("pause/queue:a", "{}", later(1)) }).await;
    steers(&world, set("pause/queue:b", "{}", later(1))).await;
    let end = later(10) + CONTROL_KEPT;
    world.prunes(end - Duration::from_secs(1)).await;
    assert_eq!(values(&world).await.len(), 2);
    world.prunes(end).await;
    assert_eq!(values(&world).await, [("pause/queue:b".into(), "{}".into())]);
}
