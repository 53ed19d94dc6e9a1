//! What happens on this node, told to whoever listens at that moment. While nobody does, nothing is put together; who is too
//! slow is told how much he missed.

use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};

/// Listeners may be so many behind.
const BEHIND_MAX: usize = 1_024;

/// Nothing of an event is in it: names of the workspace, ids of ours, and errors as they are shown.
#[derive(Clone, Debug)]
pub struct Happening {
    pub at: Timestamp,
    /// accepted, duplicate, success, dead …
    pub what: &'static str,
    /// The source or the route's flow, for what happens at the door.
    pub source: Option<Arc<str>>,
    pub flow: Option<Arc<str>>,
    pub job: Option<String>,
    pub trace: Option<TraceId>,
    /// Why, in a word of a fixed list.
    pub reason: Option<&'static str>,
    pub said: String,
}

pub struct Happenings {
    told: Sender<Arc<Happening>>,
    listeners: Arc<AtomicUsize>,
}

impl Default for Happenings {
    fn default() -> Self {
        Happenings { told: channel(BEHIND_MAX).0, listeners: Arc::default() }
    }
}

impl Happenings {
    /// Who only works looks at one number.
    pub fn tell(&self, happening: impl FnOnce() -> Happening) {
        if self.listeners.load(Ordering::Relaxed) > 0 {
            // The last one may have left since.
            let _ = self.told.send(Arc::new(happening()));
        }
    }

    /// Hears all that happens from here on.
    pub fn listen(&self) -> Listener {
        let told = self.told.subscribe();
        self.listeners.fetch_add(1, Ordering::Relaxed);
        Listener { told, listeners: self.listeners.clone() }
    }
}

pub struct Listener {
    told: Receiver<Arc<Happening>>,
    listeners: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
pub enum Heard {
    Happening(Arc<Happening>),
    /// So many happened that can no longer be told.
    Missed(u64),
}

impl Listener {
    /// `None`: nothing more will happen.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.told.recv().await {
            Ok(happening) => Some(Heard::Happening(happening)),
            Err(RecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success() -> Happening {
        let at = Timestamp::from_micros(0);
        let said = String::new();
        Happening { at, what: "success", source: None, flow: None, job: None, trace: None, reason: None, said }
    }

    #[tokio::test]
    async fn i2_nothing_is_put_together_while_nobody_listens() {
        let happenings = Happenings::default();
        happenings.tell(|| panic!("nobody listens"));
        drop(happenings.listen());
        happenings.tell(|| panic!("nobody listens any more"));
        let mut listener = happenings.listen();
        happenings.tell(success);
        assert!(matches!(listener.next().await, Some(Heard::Happening(told)) if told.what == "success"));
    }

    #[tokio::test]
    async fn i2_who_is_too_slow_is_told_how_much_he_missed() {
        let happenings = Happenings::default();
        let mut listener = happenings.listen();
        (0..BEHIND_MAX + 7).for_each(|_| happenings.tell(success));
        assert!(matches!(listener.next().await, Some(Heard::Missed(7))));
        assert!(matches!(listener.next().await, Some(Heard::Happening(_))));
    }
}
