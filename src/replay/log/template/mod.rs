//! Reads lines of text by a template in the words of nginx's `log_format`.
//!
//! The combined format, the common one and that of AWS's load balancer are templates, too.

mod words;

use std::str::FromStr;
use std::sync::LazyLock;

use super::draft::{LoggedValue, RecordDraft};
use super::escape;
use super::field::LogField;
use super::record::LineFault;

/// How lines are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineTemplate {
    fields: Vec<TemplateField>,
    /// The text after the last field. A line may go on after this text.
    tail: String,
    /// The number of fields that a line must have. A line may leave out the fields after them.
    needed: usize,
}

/// A field of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TemplateField {
    /// The text before it.
    before: String,
    spelling: String,
    /// `None` if no record has such a value.
    meaning: Option<LogField>,
}

/// The combined and the common format of nginx and Apache, also with `HOST:PORT ` before it and more after it.
pub(super) static COMBINED: LazyLock<LineTemplate> = LazyLock::new(|| {
    let text = r#"$combined_head [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    LineTemplate { needed: 5, ..words::nginx(text).unwrap_or_default() }
});

/// The format of AWS's application load balancers.
pub(super) static ALB: LazyLock<LineTemplate> = LazyLock::new(|| {
    let text = "$type $time $elb $client $target_address $request_processing_time \
        $target_processing_time $response_processing_time $elb_status_code $target_status_code \
        $received_bytes $sent_bytes \"$request\" \"$user_agent\" $ssl_cipher $ssl_protocol \
        $target_group_arn \"$trace_id\" \"$domain_name\" \"$chosen_cert_arn\" \
        $matched_rule_priority $request_creation_time ";
    LineTemplate { needed: 13, ..words::nginx(text).unwrap_or_default() }
});

impl LineTemplate {
    /// Adds a text after the last field.
    fn literal(&mut self, text: &str) {
        self.tail.push_str(text);
    }

    /// Adds a field. `meaning` is `None` if no record has such a value.
    fn field(&mut self, spelling: &str, meaning: Option<LogField>) {
        // If two fields are skipped, it does not matter where the first one ends.
        let is_one = self.tail.is_empty() && meaning.is_none();
        match self.fields.last_mut().filter(|last| is_one && last.meaning.is_none()) {
            Some(last) => last.spelling.push_str(spelling),
            None => {
                let (before, spelling) = (std::mem::take(&mut self.tail), spelling.to_owned());
                self.fields.push(TemplateField { before, spelling, meaning });
            }
        }
    }

    /// Checks that a reader can find the end of each value, and that the template has what every record needs.
    fn check(&self) -> Result<(), String> {
        let pairs = self.fields.iter().zip(self.fields.iter().skip(1));
        for (first, second) in pairs {
            if second.before.is_empty() && !second.begins_with_slash() {
                let (first, second) = (&first.spelling, &second.spelling);
                return Err(format!(
                    "nothing stands between `{first}` and `{second}`: a reader cannot tell where `{first}` ends"
                ));
            }
        }
        let has = |wanted: fn(&LogField) -> bool| {
            self.fields.iter().any(|field| field.meaning.as_ref().is_some_and(wanted))
        };
        let missing = |what, how| Err(format!("the template has no {what}: add {how}"));
        if !has(|field| matches!(field, LogField::Time(_))) {
            return missing("time", "`$time_local`, `$time_iso8601` or `$msec`");
        }
        let has_request = has(|field| *field == LogField::Request);
        if !has_request && !has(|field| *field == LogField::Method) {
            return missing("method", "`$request` or `$request_method`");
        }
        if !has_request && !has(|field| matches!(field, LogField::Target | LogField::Path)) {
            return missing("path", "`$request` or `$request_uri`");
        }
        Ok(())
    }

    /// Reads a line into the draft.
    pub(super) fn read(&self, line: &str, draft: &mut RecordDraft) -> Result<(), LineFault> {
        let no_match = LineFault::Broken("it is not in the expected format");
        let before = self.fields.first().map_or("", |field| field.before.as_str());
        let mut rest = line.strip_prefix(before).ok_or(no_match)?;
        for (number, field) in self.fields.iter().enumerate() {
            let next = self.fields.get(number + 1);
            let end = match next {
                Some(next) => field.end(rest, &next.before),
                None if self.tail.is_empty() => Some(rest.len()),
                None => field.end(rest, &self.tail),
            };
            let Some(end) = end else {
                if number + 1 < self.needed {
                    return Err(no_match);
                }
                // The line may end here, or go on in another way. A quoted value without its end is cut off.
                if !field.is_quoted() {
                    let end = memchr::memchr(b' ', rest.as_bytes()).unwrap_or(rest.len());
                    field.set(&rest[..end], draft);
                } else if number + 1 == self.needed {
                    return Err(no_match);
                }
                return Ok(());
            };
            field.set(&rest[..end], draft);
            let skipped = next.map_or(0, |next| next.before.len());
            rest = &rest[end + skipped..];
        }
        Ok(())
    }
}

impl TemplateField {
    fn set(&self, text: &str, draft: &mut RecordDraft) {
        if let Some(field) = &self.meaning {
            draft.set_field(field, LoggedValue::Text(escape::undo(text)));
        }
    }

    fn is_quoted(&self) -> bool {
        self.before.ends_with('"')
    }

    /// Whether the value begins with `/`. Then the value before it ends there.
    fn begins_with_slash(&self) -> bool {
        matches!(self.meaning, Some(LogField::Target | LogField::Path))
    }

    /// Whether the value has no spaces.
    fn is_one_word(&self) -> bool {
        use LogField::{Bytes, Duration, PartialSeconds, Status};
        matches!(self.meaning, Some(Status | Bytes | Duration(_) | PartialSeconds))
    }

    /// Where the value at the begin of `rest` ends, if the text `after` follows it.
    fn end(&self, rest: &str, after: &str) -> Option<usize> {
        let bytes = rest.as_bytes();
        let Some((first, others)) = after.as_bytes().split_first() else {
            return memchr::memchr(b'/', bytes);
        };
        // Two or three bytes are compared faster here than by a call.
        let mut ends = memchr::memchr_iter(*first, bytes).filter(|at| {
            let found = &bytes[at + 1..];
            found.len() >= others.len()
                && found.iter().zip(others).all(|(found, other)| found == other)
                && !(*first == b'"' && escape::is_open(&bytes[..*at]))
        });
        let end = ends.next()?;
        let fits = !self.is_one_word() || memchr::memchr(b' ', &bytes[..end]).is_none();
        fits.then_some(end)
    }
}

impl FromStr for LineTemplate {
    type Err = String;

    /// The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        let template = words::nginx(text)?;
        template.check()?;
        Ok(Self { needed: template.fields.len(), ..template })
    }
}

#[cfg(test)]
mod tests;
