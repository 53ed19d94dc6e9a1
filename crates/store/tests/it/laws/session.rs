//! Log-ins: opened by a password or a link, on record, and over when they are over, for everybody.

use super::user::{add, name, user};
use super::world::*;
use clinch_core::audit::Who;
use clinch_core::oidc::{Guest, Identity};
use clinch_core::session::{IDLE, LASTS};
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role, TokenDigest};
use clinch_store::{NewLink, NewSession, NewUser, Proof, SESSIONS_MAX, Seen, Welcomed};
use tokio::task::JoinSet;

fn kept(text: &str) -> PasswordHash {
    PasswordHash::new(format!("$argon2id${text}"))
}

fn with_password(at: Timestamp, secret: &str, who: &str, hash: &str) -> NewSession {
    let proof = Proof::Password(name(who), kept(hash));
    NewSession { digest: TokenDigest::of(secret), proof, origin: "web 192.0.2.9".into(), at }
}

fn with_link(at: Timestamp, secret: &str, code: &str) -> NewSession {
    NewSession { proof: Proof::Link(TokenDigest::of(code)), ..with_password(at, secret, "maya", "") }
}

fn link(at: Timestamp, code: &str, who: &str, role: Role) -> NewLink {
    let who = Who { name: who.into(), origin: "api 192.0.2.9".into(), role, source: None };
    NewLink { digest: TokenDigest::of(code), who, at, expires_at: later(900) }
}

async fn open(world: &World, session: NewSession) -> bool {
    world.open_session(session).await.expect("answered").is_some()
}

async fn whose(world: &World, secret: &str) -> Option<(String, Role)> {
    let session = world.session(TokenDigest::of(secret)).await.expect("read");
    session.map(|session| (session.name, session.role))
}

async fn maya(world: &World) {
    add(world, NewUser { password: Some(kept("one")), ..user("maya", Role::Operator, "clk_1") }).await;
}

pub async fn k1_a_password_opens_a_session_on_record(world: World) {
    maya(&world).await;
    assert!(!open(&world, with_password(later(1), "s-0", "maya", "two")).await, "it is another by now");
    assert!(!open(&world, with_password(later(1), "s-0", "eve", "one")).await);
    assert!(open(&world, with_password(later(1), "s-1", "maya", "one")).await);
    let expected = Some(("maya".to_string(), Role::Operator));
    for world in [&world.after_a_kill().await, &world] {
        assert_eq!((whose(world, "s-1").await, whose(world, "s-0").await), (expected.clone(), None));
    }
    let session = world.session(TokenDigest::of("s-1")).await.expect("read").expect("there");
    assert_eq!((session.seen_at, session.expires_at), (later(1), later(1) + LASTS));
    world.saw(Seen::Session(TokenDigest::of("s-1")), later(90)).await.expect("noted");
    world.saw(Seen::Session(TokenDigest::of("s-2")), later(90)).await.expect("what is not there stays so");
    let session = world.session(TokenDigest::of("s-1")).await.expect("read").expect("there");
    assert_eq!((session.seen_at, whose(&world, "s-2").await), (later(90), None));

    world.end_session(TokenDigest::of("s-1")).await.expect("ended");
    assert_eq!(whose(&world, "s-1").await, None);
    let rows = world.record().await;
    let told: Vec<_> = rows.iter().map(|row| (row.action.as_str(), row.actor.as_str(), row.origin.as_str())).collect();
    assert_eq!(told[0], ("me.log_in", "maya", "web 192.0.2.9"));
    let secret = "the-secret-of-this-session";
    assert!(open(&world, with_password(later(91), secret, "maya", "one")).await);
    let bytes = world.bytes().await;
    assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "only its digest is kept");
    world.adds_up().await;
}

fn guest(subject: &str, who: &str, role: Option<Role>) -> Guest {
    Guest { identity: Identity::of("https://id.example.com", subject), name: name(who), role, is_invited: false }
}

fn with_identity(at: Timestamp, secret: &str, who: &str, subject: &str) -> NewSession {
    let proof = Proof::Identity(name(who), Identity::of("https://id.example.com", subject));
    NewSession { proof, ..with_password(at, secret, who, "") }
}

async fn welcome(world: &World, guest: Guest, at: u64) -> Welcomed {
    world.welcome(guest, Who::clinch("web").record("", later(at))).await.expect("answered")
}

pub async fn k1_who_a_provider_vouches_for_is_one_user_however_often_he_comes_at_once(world: World) {
    let mut asked = JoinSet::new();
    for _ in 0..8 {
        let store = world.clone();
        let record = Who::clinch("web").record("", later(1));
        asked.spawn(async move {
            store.welcome(guest("u-1", "ada", Some(Role::Operator)), record).await.expect("answered")
        });
    }
    assert!(asked.join_all().await.into_iter().all(|welcomed| welcomed == Welcomed::As(name("ada"))));
    assert_eq!(world.users().await.expect("read").len(), 1);
    let acts: Vec<_> = world.record().await.into_iter().map(|row| row.action).collect();
    assert_eq!(acts, ["user.link", "user.add"]);

    // Somebody else of the same name is not she, and an invitation does not change who is linked.
    maya(&world).await;
    assert_eq!(welcome(&world, guest("u-2", "maya", Some(Role::Admin)), 2).await, Welcomed::Taken);
    let invited = |subject, who| Guest { is_invited: true, ..guest(subject, who, None) };
    assert_eq!(welcome(&world, invited("u-2", "ada"), 3).await, Welcomed::Taken);
    assert_eq!(welcome(&world, invited("u-2", "nobody"), 3).await, Welcomed::NoRole);
    assert_eq!(welcome(&world, invited("u-2", "maya"), 3).await, Welcomed::As(name("maya")));
    for world in [&world.after_a_kill().await, &world] {
        let kept = world.user(name("maya")).await.expect("read").expect("there").identity;
        assert_eq!(kept, Some(Identity::of("https://id.example.com", "u-2")));
    }
    assert!(open(&world, with_identity(later(4), "s-1", "maya", "u-2")).await);
    assert!(!open(&world, with_identity(later(4), "s-2", "maya", "u-1")).await, "she is not who is linked");
    assert_eq!(whose(&world, "s-1").await, Some(("maya".into(), Role::Operator)));
    world.adds_up().await;
}

pub async fn g3_each_act_of_a_welcome_is_one_line_on_record(world: World) {
    maya(&world).await;
    let invited = Guest { is_invited: true, ..guest("u-2", "maya", Some(Role::Admin)) };
    let comers: [(Guest, &[&str]); 5] = [
        (guest("u-1", "ada", Some(Role::Viewer)), &["user.link", "user.add"]),
        (guest("u-1", "ada", Some(Role::Viewer)), &[]),
        (guest("u-1", "ada", Some(Role::Operator)), &["user.role"]),
        (invited.clone(), &["user.role", "user.link"]),
        (invited, &[]),
    ];
    for (guest, acts) in comers {
        let before = world.record().await.len();
        assert_eq!(welcome(&world, guest.clone(), 1).await, Welcomed::As(guest.name));
        let record = world.record().await;
        let told: Vec<_> = record[..record.len() - before].iter().map(|row| row.action.as_str()).collect();
        assert_eq!(told, acts);
    }
    assert_eq!(world.inspect(None).await.expect("read").broken, None);
    world.adds_up().await;
}

pub async fn k1_whom_a_provider_gives_nothing_any_more_is_logged_out(world: World) {
    assert_eq!(welcome(&world, guest("u-1", "ada", Some(Role::Admin)), 1).await, Welcomed::As(name("ada")));
    assert!(open(&world, with_identity(later(1), "s-1", "ada", "u-1")).await);
    assert_eq!(welcome(&world, guest("u-1", "other", Some(Role::Admin)), 2).await, Welcomed::As(name("ada")));
    assert!(whose(&world, "s-1").await.is_some(), "nothing changed");
    assert_eq!(welcome(&world, guest("u-1", "ada", Some(Role::Viewer)), 3).await, Welcomed::As(name("ada")));
    assert_eq!(whose(&world, "s-1").await, None, "who has less logs in again");
    assert!(open(&world, with_identity(later(4), "s-2", "ada", "u-1")).await);
    assert_eq!(whose(&world, "s-2").await, Some(("ada".into(), Role::Viewer)));
    assert_eq!(welcome(&world, guest("u-1", "ada", None), 5).await, Welcomed::NoRole);
    assert_eq!(whose(&world, "s-2").await, None);
    world.adds_up().await;
}

pub async fn k1_a_token_that_is_removed_ends_what_was_logged_in_with_it(world: World) {
    maya(&world).await;
    add(&world, NewUser { password: Some(kept("two")), ..user("ben", Role::Operator, "clk_2") }).await;
    for (code, who) in [("used", "maya"), ("unused", "maya"), ("other", "ben")] {
        world.make_link(link(later(1), code, who, Role::Operator)).await.expect("made");
    }
    assert!(open(&world, with_link(later(2), "s-1", "used")).await);
    assert!(open(&world, with_link(later(2), "s-2", "other")).await);
    let token =
        world.user_tokens().await.expect("read").into_iter().find(|row| row.user == name("maya")).expect("hers");
    assert!(
        world.remove_user_token(name("maya"), token.id, by("admin", "it leaked", later(3))).await.expect("answered")
    );
    assert_eq!(whose(&world, "s-1").await, None);
    assert!(!open(&world, with_link(later(4), "s-3", "unused")).await);
    assert!(whose(&world, "s-2").await.is_some(), "others go on");
}

pub async fn k1_a_link_opens_one_session_however_many_use_it(world: World) {
    maya(&world).await;
    // Its maker came with less than he might have.
    world.make_link(link(later(1), "code", "maya", Role::Viewer)).await.expect("kept");
    let mut asked = JoinSet::new();
    for no in 0..20 {
        let store = world.clone();
        asked.spawn(async move {
            let session = with_link(later(2), &format!("s-{no}"), "code");
            store.open_session(session).await.expect("answered").map(|session| session.role)
        });
    }
    let opened: Vec<Role> = asked.join_all().await.into_iter().flatten().collect();
    assert_eq!(opened, [Role::Viewer]);
    world.make_link(link(later(3), "late", "maya", Role::Viewer)).await.expect("kept");
    assert!(!open(&world, with_link(later(900), "s-late", "late")).await, "15 minutes are over");
    assert!(!open(&world, with_link(later(4), "s-none", "none")).await);
    world.make_link(link(later(5), "admin's", "admin", Role::Admin)).await.expect("kept");
    assert!(open(&world, with_link(later(6), "s-admin", "admin's")).await);
    assert_eq!(whose(&world, "s-admin").await, Some(("admin".into(), Role::Admin)));
    world.adds_up().await;
}

pub async fn t_101_who_is_removed_or_changed_is_logged_out(world: World) {
    maya(&world).await;
    let at = later(1);
    let log_in = async |secret: &str, hash: &str| {
        world.make_link(link(at, &format!("link {secret}"), "maya", Role::Viewer)).await.expect("kept");
        assert!(open(&world, with_password(at, secret, "maya", hash)).await);
    };
    let is_out = async |secret: &str| {
        let link = with_link(at, "by link", &format!("link {secret}"));
        whose(&world, secret).await.is_none() && !open(&world, link).await
    };
    log_in("before the role", "one").await;
    assert!(world.set_role(name("maya"), Role::Approver, by("admin", "", at)).await.expect("answered"));
    assert!(is_out("before the role").await);
    log_in("before the password", "one").await;
    assert!(world.set_password(name("maya"), kept("two"), by("admin", "", at)).await.expect("answered"));
    assert!(is_out("before the password").await);
    log_in("before the end", "two").await;
    assert!(world.remove_user(name("maya"), by("admin", "", at)).await.expect("answered"));
    assert!(is_out("before the end").await);
    assert!(!world.set_password(name("maya"), kept("x"), by("admin", "", at)).await.expect("answered"));
    world.adds_up().await;
}

/// Whichever comes first: nobody is in by a password that is over.
pub async fn t_101_a_log_in_at_the_moment_of_a_change_does_not_outlive_it(world: World) {
    maya(&world).await;
    for no in 0..10 {
        let (now, next) = (if no == 0 { "one".into() } else { format!("p-{no}") }, format!("p-{}", no + 1));
        let mut asked = JoinSet::new();
        for nth in 0..8 {
            let (store, session) = (world.clone(), with_password(later(1), &format!("s-{no}-{nth}"), "maya", &now));
            asked.spawn(async move { drop(store.open_session(session).await.expect("answered")) });
        }
        let store = world.clone();
        asked.spawn(async move {
            assert!(store.set_password(name("maya"), kept(&next), by("admin", "", later(1))).await.expect("answered"));
        });
        asked.join_all().await;
        for nth in 0..8 {
            assert_eq!(whose(&world, &format!("s-{no}-{nth}")).await, None, "round {no}");
        }
    }
    world.adds_up().await;
}

pub async fn t_101_sessions_of_one_person_are_bounded_and_old_ones_are_not_kept(world: World) {
    maya(&world).await;
    let most = SESSIONS_MAX.unsigned_abs();
    for no in 0..=most {
        assert!(open(&world, with_password(later(no), &format!("s-{no}"), "maya", "one")).await);
    }
    assert_eq!((whose(&world, "s-0").await, whose(&world, "s-1").await.is_some()), (None, true), "the oldest went");
    assert!(open(&world, with_password(later(most) + IDLE, "s-new", "maya", "one")).await);
    assert_eq!(whose(&world, &format!("s-{most}")).await, None, "it was idle");
    assert!(whose(&world, "s-new").await.is_some());
    world.adds_up().await;
}
