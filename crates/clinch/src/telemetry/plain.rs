//! The older format of Prometheus, made of the newer one: there a counter is called by its whole name, and there are no examples.

use super::timing::LABEL;

/// Each family begins with its help, and the line after that says what it is.
pub fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len() + openmetrics.len() / 16);
    let mut help = None;
    let example = format!(" # {{{LABEL}=");
    for line in openmetrics.lines() {
        if line == "# EOF" {
            break;
        }
        if let Some(said) = line.strip_prefix("# HELP ") {
            help = said.split_once(' ');
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|said| said.split_once(' ')) else {
            // No name of a workspace has a space in it.
            let bare = line.split_once(&example).map_or(line, |(bare, _)| bare);
            text.push_str(bare);
            text.push('\n');
            continue;
        };
        let suffix = if kind == "counter" { "_total" } else { "" };
        if let Some((_, said)) = help.take() {
            text.push_str(&format!("# HELP {name}{suffix} {said}\n"));
        }
        text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h1_in_the_older_format_a_counter_has_its_whole_name_everywhere() {
        let newer = "# HELP a_b Some.\n# TYPE a_b counter\na_b_total{x=\"# HELP\"} 3\n# HELP c More than one word.\n# TYPE c gauge\nc 1\n# EOF\n";
        let older = "# HELP a_b_total Some.\n# TYPE a_b_total counter\na_b_total{x=\"# HELP\"} 3\n# HELP c More than one word.\n# TYPE c gauge\nc 1\n";
        assert_eq!(plain(newer), older);
    }

    #[test]
    fn h1_in_the_older_format_there_are_no_examples() {
        let line = "a_bucket{x=\"y\",le=\"0.1\"} 3";
        let shown = format!("{line} # {{trace_id=\"019a8b2c41f07d4e8a1b2c3d4e5f6071\"}} 0.05 1763277963.412\n");
        assert_eq!(plain(&shown), format!("{line}\n"));
    }
}
