//! The hands of this node: one gate, through which its jobs go, and the questions of people.

use super::{carrier, crew, forecast, lookup, people};
use crate::carrier::{Carrier, NotCarried, Parcel};
use crate::effects::Gate;
use crate::forecast::{Considered, Forecast, JobPlan};
use crate::house::House;
use crate::inquiry::{Asking, Inquiry};
use crate::oidc::{self, Wire};
use crate::partners::{Outlook, Seen};
use crate::people::{People, Soon};
use bytes::Bytes;
use clinch_core::approval::{ApprovalId, Card};
use clinch_core::config::Workspace;
use clinch_core::id::JobId;
use clinch_core::oidc::DOCUMENT_BYTES_MAX;
use clinch_core::time::Timestamp;
use clinch_store::ApprovalRow;
use clinch_store::approval::Place;
use clinch_store::read::JobStory;
use http::{Request, StatusCode};
use std::sync::Arc;
use std::time::Duration;

pub struct Hands {
    house: House,
    gate: Arc<Gate>,
}

impl Hands {
    pub fn new(house: House) -> Result<Hands, String> {
        Ok(Hands { gate: Arc::new(Gate::new(house.clone())?), house })
    }

    /// Runs jobs until the stop, then waits up to `grace` for those under way.
    pub async fn work(&self, grace: Duration) {
        crew::run(self.house.clone(), self.gate.clone(), grace).await;
    }
}

impl Inquiry for Hands {
    fn was_done<'a>(&'a self, job: &'a JobStory, step: &'a str) -> Asking<'a> {
        Box::pin(lookup::inquire(&self.house, &self.gate, job, step))
    }
}

impl Forecast for Hands {
    fn foresee(&self, workspace: &Workspace, event: &Considered) -> Vec<JobPlan> {
        forecast::plan(&self.house, workspace, event)
    }
}

impl Outlook for Hands {
    fn partners(&self, now: Timestamp, window: Duration) -> Vec<Seen> {
        self.gate.seen(now, window)
    }
}

impl Wire for Hands {
    fn ask<'a>(&'a self, question: Request<Bytes>) -> Soon<'a, Result<(StatusCode, Bytes), String>> {
        Box::pin(self.gate.inquire(question, oidc::TIMEOUT, DOCUMENT_BYTES_MAX))
    }
}

impl People for Hands {
    fn card<'a>(&'a self, approval: &'a ApprovalId) -> Soon<'a, clinch_store::Result<Card>> {
        Box::pin(people::card(&self.house, approval))
    }

    fn tell<'a>(
        &'a self,
        place: &'a Place,
        approvals: &'a [ApprovalRow],
    ) -> Soon<'a, clinch_store::Result<Result<(), String>>> {
        Box::pin(people::tell(&self.house, &self.gate, place, approvals))
    }

    fn answer<'a>(&'a self, place: &'a Place, job: JobId, url: &'a str, text: &'a str) -> Soon<'a, ()> {
        Box::pin(people::answer(&self.house, &self.gate, place, job, url, text))
    }
}

impl Carrier for Hands {
    fn carry<'a>(&'a self, parcel: &'a Parcel) -> Soon<'a, Result<(), NotCarried>> {
        Box::pin(carrier::carry(&self.house, &self.gate, parcel))
    }
}
