//! The MaxMind databases of a workspace: read into memory, and read again when their file has changed.

use maxminddb::Reader;
use serde_json::Value;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Tells one state of a file from another.
type Stamp = (SystemTime, u64);

#[derive(Clone)]
struct Database {
    reader: Arc<Reader<Vec<u8>>>,
    /// Of the file when it was last looked into, whether or not it could be used.
    stamp: Stamp,
}

pub struct Geoip {
    workspace: PathBuf,
    open: Mutex<HashMap<String, Database>>,
}

impl Geoip {
    /// Opens these files of a workspace, or says which cannot be used.
    pub fn open<'f>(workspace: &Path, files: impl IntoIterator<Item = &'f str>) -> Result<Geoip, String> {
        let geoip = Geoip { workspace: workspace.to_path_buf(), open: Mutex::default() };
        geoip.hold(files)?;
        Ok(geoip)
    }

    /// Opens these too, or says which cannot be used.
    pub fn hold<'f>(&self, files: impl IntoIterator<Item = &'f str>) -> Result<(), String> {
        files.into_iter().try_for_each(|file| self.database(file).map(drop))
    }

    /// What the database says of the address; null if it does not know it.
    pub fn look_up(&self, file: &str, address: IpAddr) -> Result<Value, String> {
        let reader = self.database(file)?;
        // An IPv4 address may be written as an IPv6 one.
        let found = reader.lookup(address.to_canonical()).and_then(|found| found.decode::<Value>());
        match found {
            Ok(found) => Ok(found.unwrap_or(Value::Null)),
            // An IPv6 address in a database of IPv4.
            Err(maxminddb::MaxMindDbError::InvalidInput { .. }) => Ok(Value::Null),
            Err(error) => Err(format!("{file} cannot be read: {error}")),
        }
    }

    fn database(&self, file: &str) -> Result<Arc<Reader<Vec<u8>>>, String> {
        let path = self.workspace.join(file);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&path);
        if let (Some(known), Ok(stamp)) = (open.get(file), &stamp)
            && known.stamp == *stamp
        {
            return Ok(known.reader.clone());
        }
        let read = stamp.and_then(|stamp| {
            let bytes = std::fs::read(&path)?;
            Ok((stamp, Reader::from_source(bytes).map_err(std::io::Error::other)))
        });
        match (open.get_mut(file), read) {
            (_, Ok((stamp, Ok(reader)))) => {
                let reader = Arc::new(reader);
                open.insert(file.to_string(), Database { reader: reader.clone(), stamp });
                Ok(reader)
            }
            // A file that is being replaced may be half there; what is known stays known.
            (Some(known), Ok((stamp, Err(error)))) => {
                tracing::warn!("{file} has changed and cannot be used: {error}; the one before is used");
                known.stamp = stamp;
                Ok(known.reader.clone())
            }
            (Some(known), Err(_)) => Ok(known.reader.clone()),
            (None, Ok((_, Err(error))) | Err(error)) => Err(format!(
                "{} cannot be used: {error}; put a MaxMind database (GeoLite2 or GeoIP2, .mmdb) there",
                path.display()
            )),
        }
    }
}

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let about = std::fs::metadata(path)?;
    Ok((about.modified()?, about.len()))
}
