//! Dry runs for which there is no server: what files alone say of an event that nobody sent.

use crate::world::{NO_WORKER, World};
use serde_json::{Value, json};

/// The second step reads what the first was answered, the third nothing.
const STEPS: &str = "
version: 1
name: charge
consumes: {queue: orders}
run:
  - name: find
    http: {method: GET, url: 'http://TARGET/find?n={{ body.n }}', idempotency: natural}
  - name: charge
    if: body.n != 3
    http: {url: http://TARGET/charge, body: {id: '{{ steps.find.output.id }}'}, idempotency: header}
  - name: tell
    http: {url: http://TARGET/tell, headers: {x-token: '${secrets.CRM_TOKEN_OF_NOBODY}'}, body_from: body, idempotency: header}
";

/// Without what is of one run alone.
fn plan(document: &str) -> Value {
    let document: Value = serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let mut plan = document["plan"].clone();
    for step in plan[0]["steps"].as_array_mut().unwrap() {
        if let Some(effect) = step["effect"].as_object_mut() {
            assert!(
                effect.remove("fingerprint").is_some_and(|said| said.as_str().is_some_and(|said| said.len() == 16))
            );
        }
    }
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_an_event_from_a_file_is_planned_by_the_files_alone_where_no_server_is() {
    let world = World::unopened(&[&crate::world::USUAL[..], &[("workers/charge.yml", STEPS)]].concat()).await;
    let (directory, beside) = (world.workspace_dir().display().to_string(), tempfile::tempdir().unwrap());
    let (event, expected) = (beside.path().join("event.json"), beside.path().join("plan.json"));
    std::fs::write(&event, r#"{"n": 1}"#).unwrap();
    let run = async |more: &[&str]| {
        let own = ["dry-run", "--workspace", &directory, "--event", event.to_str().unwrap()];
        world.clinch(&[&own, more].concat()).await
    };
    let (code, said) = run(&[]).await;
    assert_eq!(code, 0, "{said}");
    for part in [
        "1 event, masked, nothing sent\norders  queue orders, worker charge",
        "run         find",
        "unknown     charge  needs the answer of find",
        "run         tell",
        "no server was asked: duplicates and what was done before are not known",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!said.contains("same plan"), "it was compared with nothing: {said}");

    let steps = json!([{"steps": [{"verdict": "run"}, {"verdict": "unknown"}, {"verdict": "run"}]}]);
    std::fs::write(&expected, steps.to_string()).unwrap();
    let expecting = ["--expect", expected.to_str().unwrap()];
    assert_eq!(run(&expecting).await.0, 0);
    std::fs::write(&event, r#"{"n": 3}"#).unwrap();
    let (code, said) = run(&expecting).await;
    assert!(code == 1 && said.contains("plan[0].steps[1].verdict: \"skip\" instead of \"unknown\""), "{said}");

    // Beside other files, whose secrets are others.
    let other = World::unopened(&[&crate::world::USUAL[..], &[("workers/charge.yml", STEPS)]].concat()).await;
    let steps = STEPS.replace("n != 3", "n != 4").replace("CRM_TOKEN_OF_NOBODY", "OTHER_TOKEN_OF_NOBODY");
    other.write("workers/charge.yml", &steps);
    let other = other.workspace_dir().display().to_string();
    let (code, said) = run(&["--against", &other, "--exit-code"]).await;
    assert_eq!(code, 10, "{said}");
    assert!(said.starts_with(&format!("{other} (")) && said.contains("charge: skip instead of unknown"), "{said}");

    // What only a store knows is not made up.
    for needs in [
        &["dry-run", "--workspace", &directory, "--last", "5"][..],
        &["dry-run", "--workspace", &directory, "--event", "evt_01HZX5T0N8W2A"],
    ] {
        let (code, said) = world.clinch(needs).await;
        assert!(code != 0 && said.contains("No server is running"), "{needs:?}: {said}");
    }
    let (code, said) = run(&["--against", "live"]).await;
    assert!(code != 0 && said.contains("No server is running"), "{said}");
    world.write(
        "flows/more.yml",
        &crate::world::FLOW.replace("name: orders\n", "name: more\n").replace("/hooks/orders", "/more"),
    );
    let (code, said) = run(&[]).await;
    assert!(code == 2 && said.contains("FLOW is one of: more, orders"), "{said}");

    assert_eq!(world.target.calls().len(), 0, "nobody was called");
    assert!(!world.data_dir().exists(), "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_a_plan_is_the_same_with_a_server_and_without() {
    let steps = STEPS.replace("'${secrets.CRM_TOKEN_OF_NOBODY}'", "t");
    let mut world = World::with_roles(NO_WORKER, &[("workers/charge.yml", &steps)]).await;
    let (directory, beside) = (world.workspace_dir().display().to_string(), tempfile::tempdir().unwrap());
    let event = beside.path().join("event.json");
    std::fs::write(&event, r#"{"n": 3}"#).unwrap();
    let ask = ["dry-run", "orders", "--workspace", &directory, "--event", event.to_str().unwrap(), "-o", "json"];
    let (code, with) = world.clinch(&ask).await;
    assert_eq!(code, 0, "{with}");
    world.close().await;
    let (code, without) = world.clinch(&ask).await;
    assert_eq!(code, 0, "{without}");
    let (without, said) =
        without.rsplit_once("\nno server was asked").map_or((without.as_str(), false), |(it, _)| (it, true));
    assert!(said, "{without}");
    let planned = plan(&with);
    assert_eq!(planned, plan(without));
    let verdicts: Vec<&str> =
        planned[0]["steps"].as_array().unwrap().iter().map(|step| step["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["run", "skip", "run"]);
    assert_eq!(world.target.calls().len(), 0);
}
