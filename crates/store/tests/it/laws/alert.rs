//! Alerts: begun once, changed by one at a time, kept for a while.

use super::world::*;
use clinch_core::time::Timestamp;
use clinch_store::alert::{ALERT_KEPT, AlertRow, Alerts};
use std::time::Duration;

fn circuit(value: &str, at: Timestamp) -> AlertRow {
    AlertRow {
        id: 0,
        name: "ClinchCircuitOpen:crm".into(),
        version: 0,
        value: value.into(),
        began_at: at,
        ended_at: None,
        rest_at: None,
    }
}

async fn restless(world: &World) -> Vec<AlertRow> {
    world.alerts(Alerts::Restless).await.expect("read")
}

async fn newest(world: &World) -> Vec<AlertRow> {
    world.alerts(Alerts::Newest(10)).await.expect("read")
}

pub async fn h4_an_alert_survives_a_kill_as_it_was(world: World) {
    assert_eq!(restless(&world).await, []);
    let id = world.raise_alert(circuit("{}", later(1))).await.expect("answered").expect("it is the first");
    let row = AlertRow { id, version: 1, ..circuit("{}", later(1)) };
    assert_eq!(restless(&world).await, std::slice::from_ref(&row));
    assert!(world.mark_alert(AlertRow { value: r#"{"told":1}"#.into(), ..row.clone() }).await.expect("answered"));
    let world = world.after_a_kill().await;
    assert_eq!(restless(&world).await, [AlertRow { version: 2, value: r#"{"told":1}"#.into(), ..row }]);
    world.adds_up().await;
}

pub async fn h4_of_many_who_see_it_one_begins_an_alert(world: World) {
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let store = world.clone();
            tokio::spawn(async move { store.raise_alert(circuit("{}", later(1))).await.expect("answered") })
        })
        .collect();
    let mut begun = 0;
    for task in tasks {
        begun += usize::from(task.await.expect("it ends").is_some());
    }
    assert_eq!((begun, restless(&world).await.len()), (1, 1));
    let other = AlertRow { name: "ClinchCircuitOpen:mail".into(), ..circuit("{}", later(1)) };
    assert!(world.raise_alert(other).await.expect("answered").is_some(), "another is another");
}

pub async fn h4_of_many_who_change_an_alert_one_does(world: World) {
    let id = world.raise_alert(circuit("{}", later(1))).await.expect("answered").expect("it is the first");
    let tasks: Vec<_> = (0..20)
        .map(|nth| {
            let (store, row) = (world.clone(), AlertRow { id, version: 1, ..circuit(&nth.to_string(), later(1)) });
            tokio::spawn(async move { store.mark_alert(row).await.expect("answered") })
        })
        .collect();
    let mut changed = 0;
    for task in tasks {
        changed += usize::from(task.await.expect("it ends"));
    }
    assert_eq!((changed, restless(&world).await[0].version), (1, 2));
}

pub async fn h4_an_alert_that_ended_lets_the_next_begin(world: World) {
    let first = world.raise_alert(circuit("{}", later(1))).await.expect("answered").expect("it is the first");
    let ended = AlertRow { id: first, version: 1, ended_at: Some(later(2)), ..circuit("{}", later(1)) };
    assert!(world.mark_alert(ended.clone()).await.expect("answered"));
    let second = world.raise_alert(circuit("{}", later(3))).await.expect("answered").expect("none is open");
    let ids = |rows: Vec<AlertRow>| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(restless(&world).await), [first, second], "somebody may still be told of the first");
    assert!(world.mark_alert(AlertRow { version: 2, rest_at: Some(later(4)), ..ended }).await.expect("answered"));
    assert_eq!(ids(restless(&world).await), [second]);
    assert_eq!(ids(newest(&world).await), [second, first]);
}

pub async fn h4_an_alert_that_is_over_is_kept_for_a_while(world: World) {
    let id = world.raise_alert(circuit("{}", later(1))).await.expect("answered").expect("it is the first");
    let over =
        AlertRow { id, version: 1, ended_at: Some(later(2)), rest_at: Some(later(3)), ..circuit("{}", later(1)) };
    assert!(world.mark_alert(over).await.expect("answered"));
    world.raise_alert(circuit("{}", later(4))).await.expect("answered").expect("none is open");
    world.prunes(later(3) + ALERT_KEPT - Duration::from_secs(1)).await;
    assert_eq!(newest(&world).await.len(), 2);
    world.prunes(later(3) + ALERT_KEPT).await;
    assert_eq!(newest(&world).await.len(), 1, "the one that is open stays");
}
