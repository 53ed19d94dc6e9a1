//! `enrich: {geoip: …}` what a MaxMind database says of an IP address.
//!
//! ```yaml
//! - name: place
//!   enrich: {geoip: {from: body.ip, database: GeoLite2-City.mmdb}}
//! # steps.place.output.country.iso_code; steps.place.output is null where the database does not know the address
//! ```

use super::{Inward, bad_payload, missing};
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::death::Reason;
use clinch_core::worker::GeoipAction;
use serde_json::Value;
use std::net::IpAddr;

impl Inward for GeoipAction {
    fn compute(&self, scope: &mut Scope<'_>) -> Result<Value, Failure> {
        let source = self.from.source();
        let value = self.from.value(scope.names()).map_err(missing)?;
        let address: Option<IpAddr> = value.as_str().and_then(|text| text.trim().parse().ok());
        let address = address.ok_or_else(|| bad_payload(format!("`{source}` is not an IP address")))?;
        scope.house().geoip.look_up(&self.database, address).map_err(|why| Failure::new(Reason::ConfigError, why))
    }
}
