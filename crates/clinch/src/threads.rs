//! Threads of their own for the rooms that are always at work: the door in, and the hands. A task that stays on its thread is cheaper than one that is
//! handed to whichever is free; and what a page of the console takes, it takes from neither of them.

use crate::roles::Roles;
use std::io;
use std::thread::available_parallelism;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// When they are dropped, what still runs on them ends where it waits.
pub struct Threads {
    pub intake: Handle,
    pub worker: Handle,
    /// Each room's threads are there until this is gone. Nobody waits for their end: who drops them is a task himself.
    until: Vec<oneshot::Sender<()>>,
}

impl Threads {
    /// Who does not have the role needs no threads for it.
    pub fn start(roles: Roles) -> io::Result<Threads> {
        let each = each(available_parallelism().map_or(1, usize::from), roles);
        let mut threads = Threads { intake: Handle::current(), worker: Handle::current(), until: Vec::new() };
        if roles.intake {
            threads.intake = threads.add("clinch-intake", each)?;
        }
        if roles.worker {
            threads.worker = threads.add("clinch-worker", each)?;
        }
        Ok(threads)
    }

    fn add(&mut self, name: &str, count: usize) -> io::Result<Handle> {
        // A thread that shares its tasks with no other saves a twentieth of its time.
        let mut kind = if count == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let runtime = kind.worker_threads(count).thread_name(name).enable_all().build()?;
        let handle = runtime.handle().clone();
        let (until, over) = oneshot::channel();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            // Nothing is ever sent.
            let _ = runtime.block_on(over);
            runtime.shutdown_background();
        })?;
        self.until.push(until);
        Ok(handle)
    }
}

/// Rooms that share a machine have as many each, so that none of them takes all of it from the other.
fn each(processors: usize, roles: Roles) -> usize {
    let rooms = usize::from(roles.intake) + usize::from(roles.worker);
    (processors / rooms.max(1)).max(1)
}

/// The same socket, listened on by those threads from here on.
pub fn hand_over(listener: TcpListener, to: &Handle) -> io::Result<TcpListener> {
    let socket = listener.into_std()?;
    let _on_them = to.enter();
    TcpListener::from_std(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_on_threads_of_a_room_runs_there_and_ends_with_them() {
        for count in [1, 3] {
            let mut threads = Threads { intake: Handle::current(), worker: Handle::current(), until: Vec::new() };
            let room = threads.add("clinch-room", count).expect("threads");
            let (hold, gone) = oneshot::channel::<()>();
            let name = room.spawn(async { std::thread::current().name().map(str::to_string) });
            room.spawn(async move {
                let _hold = hold;
                std::future::pending::<()>().await;
            });
            assert_eq!(name.await.expect("run").as_deref(), Some("clinch-room"));
            drop(threads);
            gone.await.expect_err("dropped with the threads");
        }
    }

    #[test]
    fn who_does_all_of_it_divides_the_processors() {
        let check = |processors: usize, intake: bool, worker: bool, wanted: usize| {
            let roles = Roles { intake, worker, ..Roles::ALL };
            assert_eq!(each(processors, roles), wanted, "{processors} processors, {roles:?}");
        };
        check(1, true, true, 1);
        check(2, true, true, 1);
        check(8, true, true, 4);
        check(8, true, false, 8);
        check(8, false, true, 8);
        check(8, false, false, 8);
    }
}
