//! `oidc:` of `clinch.yml`.

use super::problem::{Code, Problem, printable};
use super::read::Reader;
use super::source::texts;
use super::value::{self, Read};
use super::yaml::{Key, Node};
use crate::expr::Template;
use crate::oidc::{OidcRule, RoleRule};
use crate::user::{Role, UserName};
use std::str::FromStr;

pub(super) fn read(map: Reader<'_>) -> Option<OidcRule> {
    let word = |node: &Node, name: &str| value::text(node, name).map(str::to_string);
    Some(OidcRule {
        issuer: map.must("issuer", plain_url)?,
        client_id: map.must("client_id", word)?,
        client_secret: map.may("client_secret", value::variable)?,
        url: map.may("url", plain_url)?,
        scopes: map.or("scopes", vec!["profile".into(), "email".into()], texts)?,
        domains: map.or("domains", Vec::new(), texts)?.iter().map(|domain| domain.to_ascii_lowercase()).collect(),
        name: map.or("name", "preferred_username".into(), word)?,
        roles: match map.map("roles") {
            None => None,
            Some(roles) => Some(RoleRule { claim: roles.must("claim", word)?, map: roles.must("map", pairs::<Role>)? }),
        },
        users: map.or("users", Vec::new(), pairs::<UserName>)?,
    })
}

/// What is wrong beyond its shape, at its place.
pub(super) fn check(map: Reader<'_>, problems: &mut Vec<Problem>) {
    for name in ["issuer", "url"] {
        // What is no URL at all was told already.
        if let Some(node) = map.node.get(name).filter(|node| value::url(node, name).is_ok())
            && let Err(problem) = plain_url(node, name)
        {
            problems.push(*problem);
        }
    }
    if let Some(node) = map.map("roles").and_then(|roles| roles.node.get("map")) {
        problems.extend(bad_pairs::<Role>(node, Code::BadChoice));
    }
    if let Some(node) = map.node.get("users") {
        problems.extend(bad_pairs::<UserName>(node, Code::BadName));
    }
    if !map.has("roles") && !map.has("users") {
        let said = "nobody could log in by this provider: it is not said who has which role";
        let problem = Problem::error(Code::MissingKey, map.node.head(), said).label("needs `roles` or `users`");
        problems.push(problem.help("add `roles: {claim: groups, map: {GROUP: operator}}`, or `users: {ADDRESS: NAME}` for users that were added"));
    }
}

/// A URL in which nothing is computed, and that nothing follows.
fn plain_url(node: &Node, name: &str) -> Read<String> {
    match value::url(node, name) {
        Ok(Template::Plain(url)) if !url.contains(['?', '#', '@']) => Ok(url),
        Err(problem) => Err(problem),
        Ok(_) => {
            let said = format!("`{name}` is a plain address, without templates, `?`, `#` and passwords");
            Err(Box::new(Problem::error(Code::BadUrl, node.head(), said).help("write it as `https://id.example.com`")))
        }
    }
}

/// What each of them says cannot be read reads as nothing; it is told by `bad_pairs`.
fn pairs<T: FromStr>(node: &Node, name: &str) -> Read<Vec<(String, T)>> {
    let pair = |(key, word): (String, String)| {
        let problem = || Box::new(value::wrong_type(node, name, "a known word"));
        Ok((key, word.parse().map_err(|_| problem())?))
    };
    value::renames(node, name)?.into_iter().map(pair).collect()
}

fn bad_pairs<T: FromStr<Err: std::fmt::Display>>(node: &Node, code: Code) -> impl Iterator<Item = Problem> {
    node.fields().iter().filter_map(move |(_, node): &(Key, Node)| {
        let error = node.text()?.parse::<T>().err()?;
        Some(Problem::error(code, node.head(), printable(&error.to_string())))
    })
}
