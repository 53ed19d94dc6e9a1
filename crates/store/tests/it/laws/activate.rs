//! Which workspace is live: files that are new, files that are known, and what an operator chose.

use super::world::*;
use clinch_store::{ActivateAsk, Activated, Activation, VersionId};
use std::sync::Arc;
use tokio::task::JoinSet;

fn chooses(hash: u8, expect: Option<VersionId>, at: u64) -> ActivateAsk {
    let by = Activation::Operator { action: "config.apply", expect };
    ActivateAsk { hash: [hash; 32], files: format!("{hash}"), by, record: by_maya(at) }
}

fn by_maya(at: u64) -> clinch_store::Record {
    by("maya", "the new prices", later(at))
}

async fn live(world: &World) -> Option<VersionId> {
    world.live_version().await.expect("read")
}

pub async fn j2_files_that_are_new_become_live_and_the_same_files_change_nothing(world: World) {
    assert_eq!(live(&world).await, None);
    let one = world.starts_with(1, 0).await;
    assert_eq!((one, live(&world).await), (Activated::Live(VersionId(1)), Some(VersionId(1))));
    assert_eq!(world.starts_with(1, 1).await, one);
    assert_eq!(world.starts_with(2, 2).await, Activated::Live(VersionId(2)));
    // Nobody chose: whoever starts with the older files goes back to them.
    assert_eq!(world.starts_with(1, 3).await, one);
    let world = world.after_a_stop().await;
    assert_eq!(live(&world).await, Some(VersionId(1)));
    assert_eq!(world.record().await.len(), 3, "on record each time that another was live");
}

pub async fn j2_a_choice_of_an_operator_is_not_undone_by_files_that_were_known(world: World) {
    world.starts_with(1, 0).await;
    let two = Activated::Live(VersionId(2));
    assert_eq!(world.activate(chooses(2, None, 1)).await.expect("done"), two);
    let world = world.after_a_stop().await;
    let kept = Activated::Kept { live: VersionId(2), files: VersionId(1) };
    assert_eq!(world.starts_with(1, 2).await, kept);
    assert_eq!(live(&world).await, Some(VersionId(2)));
    assert_eq!(world.starts_with(2, 3).await, two, "the same files");
    // What nobody has seen is what somebody means to have now.
    assert_eq!(world.starts_with(3, 4).await, Activated::Live(VersionId(3)));
    assert_eq!(world.starts_with(1, 5).await, Activated::Live(VersionId(1)), "the choice is over");
    let rows = world.record().await;
    let told: Vec<_> = rows.iter().rev().map(|row| (&*row.actor, &*row.action, &*row.reason)).collect();
    assert_eq!(told[1], ("maya", "config.apply", "the new prices"));
    assert_eq!(told.len(), 4, "what was kept is no change");
    world.adds_up().await;
}

pub async fn j2_who_expects_another_version_changes_nothing(world: World) {
    world.starts_with(1, 0).await;
    let ask = |expect: i64| chooses(2, Some(VersionId(expect)), 1);
    assert_eq!(world.activate(ask(7)).await.expect("asked"), Activated::Conflict(VersionId(1)));
    assert_eq!((live(&world).await, world.versions(9).await.expect("read").len()), (Some(VersionId(1)), 1));
    assert_eq!(world.activate(ask(1)).await.expect("done"), Activated::Live(VersionId(2)));
    assert_eq!(world.activate(ask(1)).await.expect("asked"), Activated::Conflict(VersionId(2)));
}

pub async fn j2_of_many_who_choose_at_once_on_the_same_version_one_does(world: World) {
    world.starts_with(1, 0).await;
    let mut all = JoinSet::new();
    for hash in 2..10 {
        let store = Arc::clone(&world);
        all.spawn(async move { store.activate(chooses(hash, Some(VersionId(1)), 1)).await.expect("asked") });
    }
    let answers = all.join_all().await;
    let done = answers.iter().filter(|answer| matches!(answer, Activated::Live(_))).count();
    assert_eq!((done, live(&world).await), (1, Some(VersionId(2))), "{answers:?}");
    assert_eq!(world.versions(9).await.expect("read").len(), 2, "who lost left nothing behind");
}
