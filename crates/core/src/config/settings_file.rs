//! `clinch.yml`.

use super::dialect::SETTINGS;
use super::problem::{Code, Problem, Report};
use super::read::{Reader, Spot};
use super::shape;
use super::source::{self, SourceFile};
use super::value;
use super::yaml::{Key, Node};
use super::{Encryption, Settings, SharedStore};

/// What the settings say, as far as they can be read.
#[derive(Default)]
pub(super) struct SettingsFile {
    pub settings: Settings,
    /// The names of the key stores.
    pub kv: Vec<Spot<String>>,
    pub sources: Vec<SourceFile>,
}

pub(super) fn read(root: &Node, report: &mut Report<'_>) -> SettingsFile {
    shape::check(root, &SETTINGS, root.head(), report);
    let reader = Reader { node: root, report };
    let (listen, admin) = (reader.spot("listen", value::address), reader.spot("admin", value::address));
    let stores = reader.node.get("kv").map_or(&[][..], Node::fields);
    let sources = reader.node.get("sources").map_or(&[][..], Node::fields);
    let spot = |(key, _): &(Key, Node)| Spot { value: key.text.clone(), file: report.file.to_string(), span: key.span };
    let file = SettingsFile {
        settings: Settings {
            listen: listen.as_ref().map(|spot| spot.value),
            admin: admin.as_ref().map(|spot| spot.value),
            encryption: read_encryption(reader),
            kv: stores.iter().filter_map(|(key, node)| read_store(&key.text, Reader { node, report })).collect(),
        },
        kv: stores.iter().map(spot).collect(),
        sources: sources
            .iter()
            .map(|entry| source::read_named(spot(entry), Reader { node: &entry.1, report }))
            .collect(),
    };
    let mut problems = Vec::new();
    for (key, node) in sources {
        let map = Reader { node, report };
        if map.has("verify") {
            source::check(map, key.span, &mut problems);
        } else if node.text().is_none() {
            let said = format!("source `{}` does not say how its sender is recognised", key.text);
            let problem = Problem::error(Code::MissingKey, key.span, said).label("needs `verify`");
            problems.push(problem.help("add `verify: PRESET` (`clinch presets ls`), or `verify: none`"));
        }
    }
    problems.into_iter().for_each(|problem| report.add(problem));
    if let (Some(listen), Some(admin)) = (listen, admin)
        && listen.value == admin.value
        && listen.value.port() != 0
    {
        let said = "`listen` and `admin` are the same address: what is private would be public";
        let problem = Problem::error(Code::BadAddress, admin.span, said).label("also for the console and the API");
        report.add(problem.also(listen.span, "for deliveries").help("give one of them another port"));
    }
    for kv in &file.kv {
        report.add(forgetful(kv));
    }
    file
}

fn read_encryption(settings: Reader<'_>) -> Option<Encryption> {
    if settings.node.get("encryption")?.text().is_some() {
        return Some(Encryption::None);
    }
    let map = settings.map("encryption")?;
    if map.has("file") {
        return map.must("file", value::text).map(|path| Encryption::File(path.to_string()));
    }
    let older = map.node.get("older").map_or(&[][..], Node::items);
    Some(Encryption::Keys {
        key: map.must("key", value::variable)?,
        older: older.iter().filter_map(|node| value::variable(node, "older").ok()).collect(),
    })
}

fn read_store(name: &str, store: Reader<'_>) -> Option<SharedStore> {
    Some(SharedStore {
        name: name.to_string(),
        url: store.must("url", value::redis_url)?,
        pepper: store.may("pepper", value::secret)?,
        prefix: store.or("prefix", name.to_string(), value::name)?,
    })
}

/// Nobody should find out from a lost key that a Redis forgets when it is told to.
fn forgetful(kv: &Spot<String>) -> Problem {
    let said = format!("keys of `kv:{}` are remembered between installations as well as its Redis remembers", kv.value);
    Problem::warning(Code::ForgetfulStore, kv.span, said)
        .label("durability follows the settings of this Redis")
        .note("within one installation its own store still stops duplicates")
        .help("set in its redis.conf: appendonly yes, appendfsync always, maxmemory-policy noeviction")
}
