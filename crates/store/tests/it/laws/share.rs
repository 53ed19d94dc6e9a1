//! The places of an integration.

use super::world::*;
use clinch_core::portion::Share;
use clinch_store::ShareAsk;

pub async fn e1_who_is_alone_has_all_places(world: World) {
    let ask = |held, in_use, stays| ShareAsk { name: "crm".into(), max: 7, held, in_use, stays, now: later(0) };
    for held in [0, 7, 3] {
        assert_eq!(world.share(ask(held, held, true)).await.expect("shared"), Share { granted: 7, part: 7 });
    }
    world.share(ask(0, 0, false)).await.expect("left");
    assert_eq!(world.share(ask(0, 0, true)).await.expect("shared"), Share { granted: 7, part: 7 });
}
