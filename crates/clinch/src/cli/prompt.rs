//! A secret that somebody types: not shown while it is typed on a terminal, and read as one line from anything else.

use super::exit::{Exit, Failure};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{BufRead, IsTerminal};

/// A new secret, asked for twice where somebody could mistype it unseen.
pub fn new_secret(what: &str) -> Result<String, Failure> {
    let secret = secret(what)?;
    if std::io::stdin().is_terminal() && self::secret(&format!("{what}, again"))? != secret {
        return Err(Failure::new(Exit::Usage, "CL0541", "These are two different ones; nothing was changed."));
    }
    Ok(secret)
}

pub fn secret(what: &str) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    let unread =
        |error: std::io::Error| Failure::new(Exit::Failed, "CL0541", format!("{what} cannot be read: {error}"));
    let mut line = String::new();
    if stdin.is_terminal() {
        eprint!("{what}: ");
        let _hidden = Hidden::begin().map_err(unread)?;
        stdin.lock().read_line(&mut line).map_err(unread)?;
        eprintln!();
    } else {
        stdin.lock().read_line(&mut line).map_err(unread)?;
    }
    let secret = line.trim_end_matches(['\r', '\n']);
    match secret.is_empty() {
        true => {
            let said = format!("{what} is missing");
            Err(Failure::new(Exit::Usage, "CL0541", said)
                .fix("type it, or pipe it in: printf %s \"$PASSWORD\" | clinch …"))
        }
        false => Ok(secret.into()),
    }
}

/// While it lives the terminal does not show what is typed.
struct Hidden(rustix::termios::Termios);

impl Hidden {
    fn begin() -> std::io::Result<Hidden> {
        let before = tcgetattr(std::io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes &= !LocalModes::ECHO;
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Hidden(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing anyway.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
    }
}
