//! What a conversation is about, in a line, for people who watch.

use serde_json::Value;

/// Most characters of it.
const CHARACTERS: usize = 160;

/// The beginning of the last thing that the user said.
pub(super) fn of(messages: &[Value]) -> Option<String> {
    let said = messages.iter().rev().filter(|message| message["role"] == "user").find_map(|message| {
        let parts = message["content"].as_array().into_iter().flatten();
        // Clients put their own remarks first and what the user typed last.
        let text = message["content"].as_str().or_else(|| parts.rev().find_map(|part| part["text"].as_str()))?;
        Some(text).filter(|text| !text.trim().is_empty())
    })?;
    // Only so much of a long text is looked at.
    let mut words = said.split_whitespace().take(CHARACTERS);
    let mut line = words.next()?.to_owned();
    for word in words {
        if line.chars().count() > CHARACTERS {
            break;
        }
        line.push(' ');
        line.push_str(word);
    }
    if line.chars().count() > CHARACTERS {
        line = line.chars().take(CHARACTERS - 1).collect();
        line.push('…');
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_the_beginning_of_what_the_user_said_last() {
        let user = |content: Value| json!({"role": "user", "content": content});
        let answer = json!({"role": "assistant", "content": "Yes."});
        assert_eq!(
            of(&[user(json!("one")), answer.clone(), user(json!(" two\n\nthree ")), answer]).as_deref(),
            Some("two three")
        );
        let parts = json!([{"type": "text", "text": "<reminder>"}, {"type": "text", "text": "Fix it"}]);
        assert_eq!(of(&[user(parts)]).as_deref(), Some("Fix it"));
        assert_eq!(of(&[json!({"role": "system", "content": "x"}), user(json!(" "))]), None);
        let long = of(&[user(json!("é".repeat(500)))]).unwrap_or_default();
        assert_eq!((long.chars().count(), long.ends_with('…')), (CHARACTERS, true));
        assert_eq!(of(&[user(json!("word ".repeat(500)))]).unwrap_or_default().chars().count(), CHARACTERS);
    }
}
