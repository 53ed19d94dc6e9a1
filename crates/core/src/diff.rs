//! What is different between two texts, line by line.

/// A line, and where it is: counted from one, on each side that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Same { old: usize, new: usize, text: &'a str },
    Removed { old: usize, text: &'a str },
    Added { new: usize, text: &'a str },
}

/// Beyond so many pairs of lines nothing that is alike is looked for.
const PAIRS_MAX: usize = 4_000_000;

/// All lines of both, in order; what was removed stands before what was added in its place.
pub fn lines<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let most = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(one, other)| one == other).count();
    let (from, to) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let mut told = Vec::new();
    told.extend((0..head).map(|at| Line::Same { old: at + 1, new: at + 1, text: old[at] }));
    middle(from, to, head, &mut told);
    let (old_tail, new_tail) = (old.len() - tail, new.len() - tail);
    told.extend((0..tail).map(|at| {
        let (one, other) = (old_tail + at, new_tail + at);
        Line::Same { old: one + 1, new: other + 1, text: old[one] }
    }));
    told
}

/// The longest common subsequence, by the table that every textbook has.
fn middle<'a>(from: &[&'a str], to: &[&'a str], before: usize, told: &mut Vec<Line<'a>>) {
    let removed = |at: usize| Line::Removed { old: before + at + 1, text: from[at] };
    let added = |at: usize| Line::Added { new: before + at + 1, text: to[at] };
    if from.len().saturating_mul(to.len()) > PAIRS_MAX {
        told.extend((0..from.len()).map(removed));
        told.extend((0..to.len()).map(added));
        return;
    }
    let width = to.len() + 1;
    // How much is alike from here to the end.
    let mut alike = vec![0u32; (from.len() + 1) * width];
    for one in (0..from.len()).rev() {
        for other in (0..to.len()).rev() {
            alike[one * width + other] = match from[one] == to[other] {
                true => alike[(one + 1) * width + other + 1] + 1,
                false => alike[(one + 1) * width + other].max(alike[one * width + other + 1]),
            };
        }
    }
    let (mut one, mut other) = (0, 0);
    while one < from.len() || other < to.len() {
        let at = one * width + other;
        if one < from.len() && other < to.len() && from[one] == to[other] {
            told.push(Line::Same { old: before + one + 1, new: before + other + 1, text: from[one] });
            (one, other) = (one + 1, other + 1);
        } else if one < from.len() && (other == to.len() || alike[at + width] >= alike[at + 1]) {
            told.push(removed(one));
            one += 1;
        } else {
            told.push(added(other));
            other += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(old: &str, new: &str) -> Vec<String> {
        let line = |line: &Line<'_>| match line {
            Line::Same { text, .. } => format!(" {text}"),
            Line::Removed { text, .. } => format!("-{text}"),
            Line::Added { text, .. } => format!("+{text}"),
        };
        lines(old, new).iter().map(line).collect()
    }

    #[test]
    fn g3_only_what_changed_is_shown_as_changed() {
        assert_eq!(told("a\nb\nc", "a\nx\nc"), [" a", "-b", "+x", " c"]);
        assert_eq!(told("a\nb\nc\nd", "b\nd\ne"), ["-a", " b", "-c", " d", "+e"]);
        assert_eq!(told("", "a"), ["+a"]);
        assert_eq!(told("a", ""), ["-a"]);
        assert_eq!(told("a\na", "a"), [" a", "-a"]);
        let moved = lines("a\nb", "b\na");
        assert_eq!(moved[1], Line::Same { old: 2, new: 1, text: "b" });
    }

    proptest! {
        /// Whatever the texts are, each can be read off the answer.
        #[test]
        fn g3_both_texts_are_in_it(old in "[abc\n]{0,60}", new in "[abc\n]{0,60}") {
            let all = lines(&old, &new);
            let side = |is_old: bool| -> Vec<(usize, &str)> {
                all.iter().filter_map(|line| match *line {
                    Line::Same { old, new, text } => Some((if is_old { old } else { new }, text)),
                    Line::Removed { old, text } => is_old.then_some((old, text)),
                    Line::Added { new, text } => (!is_old).then_some((new, text)),
                }).collect()
            };
            let numbered = |text: &'_ str| -> Vec<(usize, String)> {
                text.lines().enumerate().map(|(at, line)| (at + 1, line.to_string())).collect()
            };
            let owned = |lines: Vec<(usize, &str)>| -> Vec<(usize, String)> {
                lines.into_iter().map(|(at, line)| (at, line.to_string())).collect()
            };
            prop_assert_eq!(owned(side(true)), numbered(&old));
            prop_assert_eq!(owned(side(false)), numbered(&new));
        }
    }
}
