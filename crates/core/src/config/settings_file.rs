//! `clinch.yml`.

use super::Settings;
use super::dialect::SETTINGS;
use super::problem::{Code, Problem, Report};
use super::read::Reader;
use super::shape;
use super::value;
use super::yaml::Node;

pub(super) fn read(root: &Node, report: &mut Report<'_>) -> Settings {
    shape::check(root, &SETTINGS, root.head(), report);
    let reader = Reader { node: root, report };
    let (listen, admin) = (reader.spot("listen", value::address), reader.spot("admin", value::address));
    let settings =
        Settings { listen: listen.as_ref().map(|spot| spot.value), admin: admin.as_ref().map(|spot| spot.value) };
    if let (Some(listen), Some(admin)) = (listen, admin)
        && listen.value == admin.value
        && listen.value.port() != 0
    {
        let said = "`listen` and `admin` are the same address: what is private would be public";
        let problem = Problem::error(Code::BadAddress, admin.span, said).label("also for the console and the API");
        report.add(problem.also(listen.span, "for deliveries").help("give one of them another port"));
    }
    settings
}
