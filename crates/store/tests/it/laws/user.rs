//! People with a token of their own: added and removed, on record.

use super::world::*;
use clinch_core::user::{Role, TokenDigest, UserName};
use clinch_store::{NewUser, UserAdded};
use tokio::task::JoinSet;

fn name(text: &str) -> UserName {
    text.parse().expect("a name")
}

fn user(text: &str, token: &str) -> NewUser {
    NewUser { name: name(text), role: Role::Operator, token: TokenDigest::of(token) }
}

async fn known(world: &World, token: &str) -> Option<UserName> {
    world.user_of(TokenDigest::of(token)).await.expect("read").map(|holder| holder.name)
}

pub async fn g3_a_user_is_known_by_his_token_until_he_is_removed(world: World) {
    for (at, (who, token)) in (0..).zip([("maya", "clk_1"), ("ben", "clk_2")]) {
        let added = world.add_user(user(who, token), by("admin", "on call", later(at))).await;
        assert_eq!(added.expect("answered"), UserAdded::Added);
    }
    assert_eq!((known(&world, "clk_1").await, known(&world, "clk_3").await), (Some(name("maya")), None));
    for world in [&world.after_a_kill().await, &world] {
        let users = world.users().await.expect("read");
        let told: Vec<_> = users.iter().map(|row| (row.name.as_str(), row.added_at)).collect();
        assert_eq!(told, [("ben", later(1)), ("maya", later(0))], "by name");
    }
    let remove = async |who| world.remove_user(name(who), by("admin", "left", later(9))).await.expect("answered");
    assert_eq!((remove("maya").await, remove("maya").await, remove("eve").await), (true, false, false));
    assert_eq!((known(&world, "clk_1").await, known(&world, "clk_2").await), (None, Some(name("ben"))));
    let rows = world.record().await;
    let told: Vec<_> = rows.iter().map(|row| (row.action.as_str(), row.object.as_str(), row.reason.as_str())).collect();
    let added = |who| ("user.add", who, "on call");
    assert_eq!(told, [("user.remove", "user:maya", "left"), added("user:ben"), added("user:maya")]);
    world.adds_up().await;
}

pub async fn g3_a_name_is_given_once(world: World) {
    let mut asked = JoinSet::new();
    for no in 0..20 {
        let store = world.clone();
        asked.spawn(async move {
            store.add_user(user("maya", &format!("clk_{no}")), by("admin", "", later(no))).await.expect("answered")
        });
    }
    let answers = asked.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == UserAdded::Added).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == UserAdded::Taken).count(), 19);
    assert_eq!((world.users().await.expect("read").len(), world.record().await.len()), (1, 1));
    world.adds_up().await;
}

pub async fn t_072_no_token_of_a_user_is_on_disk(world: World) {
    let token = "clk_this-is-the-text-of-a-token";
    world.add_user(user("maya", token), by("admin", "", later(0))).await.expect("answered");
    let bytes = world.bytes().await;
    assert!(!bytes.windows(token.len()).any(|part| part == token.as_bytes()));
    assert!(bytes.windows(4).any(|part| part == b"maya"), "they were looked at");
}
