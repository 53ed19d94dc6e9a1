//! Users: added, changed and removed, on record; and what each may write.

use super::world::*;
use clinch_core::approval::ApprovalId;
use clinch_core::audit::{Right, Who};
use clinch_core::death::Reason;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use clinch_store::{
    Act, DecideAsk, DropAsk, NewUser, NewUserToken, Record, SteerAsk, StoreError, USER_TOKENS_MAX, UserAdded,
    UserTokenMade,
};
use serde_json::Value;
use tokio::task::JoinSet;

pub fn name(text: &str) -> UserName {
    text.parse().expect("a name")
}

fn token(text: &str) -> NewUserToken {
    let digest = TokenDigest::of(text);
    let id = UserTokenId::from_bytes(*digest.as_bytes().first_chunk().expect("a digest is long"));
    NewUserToken { id, digest, role: None, source: None, expires_at: None }
}

pub fn user(text: &str, role: Role, shown: &str) -> NewUser {
    NewUser { name: name(text), role, password: None, token: Some(token(shown)) }
}

pub async fn add(world: &World, user: NewUser) {
    let added = world.add_user(user, by("admin", "on call", later(0))).await;
    assert_eq!(added.expect("answered"), UserAdded::Added);
}

async fn known(world: &World, token: &str, at: u64) -> Option<(UserName, Role)> {
    let holder = world.holder(TokenDigest::of(token), later(at)).await.expect("read");
    holder.map(|holder| (holder.name, holder.role))
}

/// A user with his own hand.
fn as_user(user: &str, role: Role, at: u64) -> Record {
    Who { name: user.into(), origin: "api 192.0.2.8".into(), role, source: None }.record("a reason", later(at))
}

fn is_refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> bool {
    match answer {
        Err(StoreError::NotAllowed(_)) => true,
        Ok(_) => false,
        other => panic!("{other:?}"),
    }
}

pub async fn g3_a_user_is_known_by_his_token_until_he_is_removed(world: World) {
    for (at, (who, token)) in (0..).zip([("maya", "clk_1"), ("ben", "clk_2")]) {
        let added = world.add_user(user(who, Role::Operator, token), by("admin", "on call", later(at))).await;
        assert_eq!(added.expect("answered"), UserAdded::Added);
    }
    let maya = Some((name("maya"), Role::Operator));
    assert_eq!((known(&world, "clk_1", 9).await, known(&world, "clk_3", 9).await), (maya, None));
    for world in [&world.after_a_kill().await, &world] {
        let users = world.users().await.expect("read");
        let told: Vec<_> = users.iter().map(|row| (row.name.as_str(), row.role, row.added_at)).collect();
        assert_eq!(told, [("ben", Role::Operator, later(1)), ("maya", Role::Operator, later(0))], "by name");
    }
    let remove = async |who| world.remove_user(name(who), by("admin", "left", later(9))).await.expect("answered");
    assert_eq!((remove("maya").await, remove("maya").await, remove("eve").await), (true, false, false));
    assert_eq!((known(&world, "clk_1", 9).await, known(&world, "clk_2", 9).await.is_some()), (None, true));
    assert_eq!(world.user_tokens().await.expect("read").len(), 1);
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
            let new = user("maya", Role::Viewer, &format!("clk_{no}"));
            store.add_user(new, by("admin", "", later(no))).await.expect("answered")
        });
    }
    let answers = asked.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == UserAdded::Added).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == UserAdded::Taken).count(), 19);
    let tokens = world.user_tokens().await.expect("read").len();
    assert_eq!((world.users().await.expect("read").len(), world.record().await.len(), tokens), (1, 1, 1));
    world.adds_up().await;
}

pub async fn k1_a_token_is_for_no_more_than_its_user_for_one_source_and_for_a_while(world: World) {
    add(&world, user("maya", Role::Operator, "clk_own")).await;
    let make = async |user: &str, token| {
        world.make_user_token(name(user), token, by("admin", "", later(1))).await.expect("answered")
    };
    let narrow = NewUserToken {
        role: Some(Role::Viewer),
        source: Some("shop".into()),
        expires_at: Some(later(10)),
        ..token("clk_narrow")
    };
    assert_eq!(make("maya", narrow).await, UserTokenMade::Made);
    let wide = NewUserToken { role: Some(Role::Approver), ..token("clk_wide") };
    assert_eq!(make("maya", wide).await, UserTokenMade::TooMuch(Role::Operator), "an operator does not vote");
    assert_eq!(make("eve", token("clk_eve")).await, UserTokenMade::NotFound);
    let holder = world.holder(TokenDigest::of("clk_narrow"), later(9)).await.expect("read").expect("known");
    assert_eq!((holder.role, holder.source.as_deref(), holder.used_at), (Role::Viewer, Some("shop"), None));
    assert_eq!(known(&world, "clk_narrow", 10).await, None, "its time is over");
    let seen = clinch_store::Seen::Token(TokenDigest::of("clk_narrow"));
    world.saw(seen, later(5)).await.expect("noted");
    world.saw(seen, later(3)).await.expect("noted");
    let used = world.holder(TokenDigest::of("clk_narrow"), later(9)).await.expect("read").expect("known").used_at;
    assert_eq!(used, Some(later(5)));

    let own = token("clk_own").id;
    let remove =
        async |user: &str| world.remove_user_token(name(user), own, by("admin", "", later(2))).await.expect("answered");
    assert_eq!((remove("ben").await, remove("maya").await, remove("maya").await), (false, true, false));
    assert_eq!(known(&world, "clk_own", 3).await, None);
    for no in 1..USER_TOKENS_MAX {
        assert_eq!(make("maya", token(&format!("clk_{no}"))).await, UserTokenMade::Made);
    }
    assert_eq!(make("maya", token("clk_more")).await, UserTokenMade::TooMany);
    world.adds_up().await;
}

pub async fn k1_another_role_takes_away_tokens_that_are_for_more(world: World) {
    add(&world, user("maya", Role::Admin, "clk_own")).await;
    for role in Role::ALL {
        let token = NewUserToken { role: Some(role), ..token(role.word()) };
        world.make_user_token(name("maya"), token, by("admin", "", later(1))).await.expect("answered");
    }
    let set =
        async |who: &str, role| world.set_role(name(who), role, by("admin", "", later(2))).await.expect("answered");
    assert!(set("maya", Role::Growth).await && !set("eve", Role::Growth).await);
    let mut roles = Vec::new();
    for shown in ["clk_own", "viewer", "operator", "approver", "growth", "admin"] {
        roles.push(known(&world, shown, 3).await.map(|(_, role)| role));
    }
    let (viewer, approver, growth) = (Some(Role::Viewer), Some(Role::Approver), Some(Role::Growth));
    assert_eq!(roles, [growth, viewer, None, approver, growth, None], "what has no role of its own follows the user");
    set("maya", Role::Admin).await;
    assert_eq!(known(&world, "admin", 3).await, None, "what was taken away does not come back");
    world.adds_up().await;
}

/// Every act of a user, by the role that he has in the store and not only by the one he came with.
pub async fn k1_a_write_of_somebody_without_the_role_changes_nothing(world: World) {
    add(&world, user("maya", Role::Viewer, "clk_1")).await;
    let dead = world.dead("k", later(0), Reason::BadPayload).await.job;
    let before = (world.inspect(None).await.expect("read").head, world.counts().await.expect("read"));
    // He came as admin, a moment ago, and is viewer by now.
    let record = || as_user("maya", Role::Admin, 30);
    let steer = |action| SteerAsk {
        name: "pause/all".into(),
        value: Some("{}".into()),
        until: None,
        expect: None,
        action,
        record: record(),
    };
    let vote = DecideAsk {
        approval: ApprovalId { job: dead, step: "ask".into() },
        vote: clinch_core::approval::Vote::Approve,
        record: record(),
    };
    let revival = clinch_store::ReviveAsk { record: record(), ..replay(dead, later(30)) };
    assert!(is_refused(world.revive(revival).await), "job.replay");
    assert!(is_refused(world.ask_drop(DropAsk { job: dead, record: record() }).await), "job.drop.ask");
    assert!(is_refused(world.steer(steer("pause.set")).await), "pause.set");
    assert!(is_refused(world.steer(steer("safe_mode.on")).await), "safe_mode.on");
    assert!(is_refused(world.steer(steer("nobody.does_this")).await), "what is not known needs more than any role");
    assert!(!is_refused(world.decide(vote).await), "there is no such approval, and nothing to refuse");
    assert!(is_refused(world.add_user(user("eve", Role::Admin, "clk_2"), record()).await), "user.add");
    assert!(is_refused(world.remove_user(name("maya"), record()).await), "user.remove");
    assert!(is_refused(world.set_role(name("maya"), Role::Admin, record()).await), "user.role");
    assert!(is_refused(world.make_user_token(name("maya"), token("clk_3"), record()).await), "user.token.make");
    let forged = Act { action: "keys.rotate", object: "x".into(), job: None, before: Value::Null, after: Value::Null };
    assert!(is_refused(world.note(forged, record()).await), "keys.rotate");
    let after = (world.inspect(None).await.expect("read").head, world.counts().await.expect("read"));
    assert_eq!((before.0, format!("{:?}", before.1)), (after.0, format!("{:?}", after.1)));
    assert_eq!(world.users().await.expect("read").len(), 1);
    assert!(world.controls().await.expect("read").is_empty() && world.drops(9).await.expect("read").is_empty());

    // Who is gone may nothing; who is no user but named elsewhere may, and who is both may what his role allows.
    let eve = as_user("eve", Role::Admin, 31);
    assert!(is_refused(world.ask_drop(DropAsk { job: dead, record: eve.clone() }).await));
    let named = |actor: &str| Record { actor: actor.into(), right: Right::Named, ..eve.clone() };
    assert!(is_refused(world.ask_drop(DropAsk { job: dead, record: named("maya") }).await));
    assert!(!is_refused(world.ask_drop(DropAsk { job: dead, record: named("ben") }).await));
    world.set_role(name("maya"), Role::Operator, by("admin", "", later(32))).await.expect("answered");
    assert!(is_refused(world.confirm_drop(DropAsk { job: dead, record: as_user("maya", Role::Viewer, 33) }).await));
    assert!(!is_refused(world.confirm_drop(DropAsk { job: dead, record: as_user("maya", Role::Operator, 33) }).await));
    // An admin among the users may also take himself away.
    add(&world, user("ada", Role::Admin, "clk_9")).await;
    assert!(!is_refused(world.set_role(name("ada"), Role::Viewer, as_user("ada", Role::Admin, 34)).await));
    assert!(is_refused(world.set_role(name("ada"), Role::Admin, as_user("ada", Role::Admin, 35)).await));
    world.set_role(name("ada"), Role::Admin, by("admin", "", later(36))).await.expect("answered");
    assert!(!is_refused(world.remove_user(name("ada"), as_user("ada", Role::Admin, 37)).await));
    world.adds_up().await;
}

/// What is refused is taken back alone: others may be written in the same commit.
pub async fn k1_what_is_refused_takes_nobody_elses_write_with_it(world: World) {
    add(&world, user("maya", Role::Viewer, "clk_1")).await;
    let mut asked = JoinSet::new();
    for no in 0..200_u32 {
        let store = world.clone();
        asked.spawn(async move {
            match no % 2 {
                0 => {
                    let refused = store.add_user(
                        user(&format!("u{no}"), Role::Viewer, &format!("clk_u{no}")),
                        as_user("maya", Role::Admin, 1),
                    );
                    assert!(is_refused(refused.await));
                }
                _ => {
                    store.accept(event(&format!("k-{no}"))).await.expect("stored");
                }
            }
        });
    }
    asked.join_all().await;
    assert_eq!(world.jobs_len().await, 100);
    assert_eq!((world.users().await.expect("read").len(), world.record().await.len()), (1, 1));
    world.adds_up().await;
}

pub async fn t_072_no_token_or_password_of_a_user_is_on_disk(world: World) {
    let token = "clk_this-is-the-text-of-a-token";
    let password = Some(PasswordHash::new("$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA".into()));
    add(&world, NewUser { password, ..user("maya", Role::Viewer, token) }).await;
    let bytes = world.bytes().await;
    assert!(!bytes.windows(token.len()).any(|part| part == token.as_bytes()));
    assert!(bytes.windows(4).any(|part| part == b"maya"), "they were looked at");
    let row = world.users().await.expect("read").remove(0);
    assert!(!format!("{row:?}").contains("argon2"), "nor is it in a log");
}
