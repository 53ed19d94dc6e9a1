//! `clinch budget`: who has used how much of a retry budget, and more for one of them.

use super::Globals;
use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table};
use crate::api::shapes::{Budget as Row, BudgetGrant, BudgetList, BudgetShow};
use clap::{Args, Subcommand};
use clinch_core::time::human;
use serde_json::json;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch budget ls --exhausted
  clinch budget show crm-upsert ada@example.com
  clinch budget grant crm-upsert ada@example.com 3 --reason 'the partner is back, INC-482'

Entities are stored as hashes: they are listed as ent_…, and shown by that or by their name.")]
pub enum Budget {
    /// Who has used something of a budget
    Ls {
        /// Only of this worker
        #[arg(value_name = "WORKER")]
        worker: Option<String>,
        /// Only those that have nothing left
        #[arg(long)]
        exhausted: bool,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// What one has left
    Show(Whose),
    /// Give one more, until its window ends
    Grant {
        #[command(flatten)]
        whose: Whose,
        /// How many retries more
        #[arg(value_name = "N")]
        units: u32,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Args, Debug)]
pub struct Whose {
    /// The worker whose budget it is
    #[arg(value_name = "WORKER")]
    worker: String,
    /// The name of the entity, as the event says it; or ent_…
    #[arg(value_name = "ENTITY")]
    entity: String,
    /// Whose it is, where routes tell tenants apart
    #[arg(long)]
    tenant: Option<String>,
}

impl Budget {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Budget::Ls { worker, exhausted, limit } => {
                let query = given(&[
                    ("budget", worker.clone()),
                    ("exhausted", exhausted.then(|| "true".to_string())),
                    ("limit", limit.map(|limit| limit.to_string())),
                ]);
                list(&client, output, &query).await
            }
            Budget::Show(Whose { worker, entity, tenant }) => {
                let query = given(&[("entity", Some(entity.clone())), ("tenant", tenant.clone())]);
                let answer = client.get::<BudgetShow>(&["budgets", worker], &query).await?;
                let row = &answer.told.budget;
                render::show(output, &answer.document, &row.entity, || sentence(row))?;
                if row.left == 0 {
                    let command = format!("clinch budget grant {worker} {} N --reason '…'", row.entity);
                    render::next(output, &command);
                }
                Ok(Exit::Done)
            }
            Budget::Grant { whose: Whose { worker, entity, tenant }, units, reason } => {
                let (entity, tenant, reason) = (entity.clone(), tenant.clone(), reason.clone());
                let ask = json!(BudgetGrant { entity, tenant, units: *units, reason });
                let answer = client.post::<BudgetShow>(&["budgets", worker, "grant"], &ask).await?;
                let row = &answer.told.budget;
                render::show(output, &answer.document, &row.entity, || sentence(row))?;
                Ok(Exit::Done)
            }
        }
    }
}

async fn list(client: &Client, output: Output, query: &[(&'static str, String)]) -> Result<Exit, Failure> {
    let answer = client.get::<BudgetList>(&["budgets"], query).await?;
    let now = render::now();
    let mut table = Table::new(&["BUDGET", "ENTITY", "LEFT", "MAX", "WINDOW", "FREE"]);
    for row in &answer.told.budgets {
        let free = match row.free_at {
            Some(at) => Cell::alarm(format!("in {}", human(at.0.since(now)))),
            None => Cell::text("now"),
        };
        table.row(vec![
            Cell::text(&row.budget),
            Cell::text(&row.entity),
            Cell::number(row.left),
            Cell::number(row.max),
            Cell::text(&row.window),
            free,
        ]);
    }
    table.print(output, &answer.document, "budgets")?;
    if answer.told.budgets.is_empty() {
        render::note("nobody has used anything of a budget");
    }
    if answer.told.more {
        render::note("there are more; raise --limit");
    }
    Ok(Exit::Done)
}

fn sentence(row: &Row) -> String {
    let Row { budget, entity, left, max, window, .. } = row;
    let granted = if row.granted > 0 { format!(", {} granted among them", row.granted) } else { String::new() };
    let until = match (row.free_at, row.over_at) {
        (Some(free), _) => format!("; more at {}", free.0),
        (None, Some(over)) => format!("; all of it again at {}", over.0),
        (None, None) => String::new(),
    };
    format!("{entity} has {left} retries left of {max} per {window} in {budget}{granted}{until}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_a_person_is_told_what_is_left_and_when_there_is_more() {
        let row = Row {
            budget: "crm".into(),
            entity: "ent_1".into(),
            left: 0,
            spent: 5,
            granted: 0,
            max: 5,
            window: "1h".into(),
            since: None,
            free_at: None,
            over_at: None,
        };
        assert_eq!(sentence(&row), "ent_1 has 0 retries left of 5 per 1h in crm");
        let granted = Row { left: 2, granted: 2, ..row };
        assert_eq!(sentence(&granted), "ent_1 has 2 retries left of 5 per 1h in crm, 2 granted among them");
    }
}
