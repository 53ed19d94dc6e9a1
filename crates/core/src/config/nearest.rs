//! Did you mean: the known word that is nearest to what was written.

/// Longer words are not compared; nobody mistypes them.
const CHARS_MAX: usize = 64;

pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if written.is_empty() || written.chars().count() > CHARS_MAX {
        return None;
    }
    let plain = letters(written);
    let scored = known.into_iter().filter(|word| word.len() <= CHARS_MAX).filter_map(|word| {
        let score = score(&plain, &letters(word));
        (score <= 1 + plain.len().max(word.len()) / 4).then_some((score, word))
    });
    scored.min_by_key(|(score, _)| *score).map(|(_, word)| word)
}

/// `maxAttempts`, `max-attempts` and `max_attempts` are one word.
fn letters(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

fn score(a: &[char], b: &[char]) -> usize {
    // A whole word inside another, such as `attempts` in `max_attempts`, is a good guess too.
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let inside = short.len() >= 4 && (long.starts_with(short) || long.ends_with(short));
    if inside { distance(a, b).min(2) } else { distance(a, b) }
}

/// How many letters must be added, dropped, changed or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let changed = last[j] + usize::from(x != y);
            let mut least = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_understood() {
        let known = ["max_attempts", "max_delay", "base_delay", "strategy", "jitter"];
        let check = |written: &str, meant: Option<&str>| assert_eq!(nearest(written, known), meant, "{written}");
        check("max_atempts", Some("max_attempts"));
        check("maxAttempts", Some("max_attempts"));
        check("attempts", Some("max_attempts"));
        check("stratgey", Some("strategy"));
        check("colour", None);
        check("", None);
        check(&"x".repeat(1_000_000), None);
    }
}
