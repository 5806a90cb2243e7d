//! Reads lines of text by a template in the words of nginx's `log_format` or of Apache's `LogFormat`.
//!
//! The combined format, the common one and that of AWS's load balancer are templates, too.

mod words;

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::LazyLock;

use super::draft::{PlaceValue, RecordDraft};
use super::escape;
use super::field::{LogField, LogPlace, TimeRank};
use super::record::ClientOrigin;
use super::record::LineFault;

/// How lines are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineTemplate {
    places: Vec<TemplatePlace>,
    /// The text behind the last place. A line may go on behind this text.
    tail: String,
    /// A line must have this many places. It may end behind each later place.
    needed: usize,
}

/// A place of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TemplatePlace {
    /// The text in front of it.
    before: String,
    spelling: String,
    /// `None` if no record has such a value.
    meaning: Option<LogPlace>,
}

/// The combined and the common format of nginx and Apache, also with `HOST:PORT ` in front, and with more behind.
pub(super) static COMBINED: LazyLock<LineTemplate> = LazyLock::new(|| {
    let text = r#"$combined_head [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    let mut template = words::nginx(text).unwrap_or_default();
    if let Some(head) = template.places.first_mut() {
        head.meaning = Some(LogPlace::Field(LogField::CombinedHead));
    }
    LineTemplate { needed: 5, ..template }
});

/// The format of AWS's application load balancers.
pub(super) static ALB: LazyLock<LineTemplate> = LazyLock::new(|| {
    let text = "$type $time $elb $client $target_address $request_processing_time \
        $target_processing_time $response_processing_time $elb_status_code $target_status_code \
        $received_bytes $sent_bytes \"$request\" \"$user_agent\" $ssl_cipher $ssl_protocol \
        $target_group_arn \"$trace_id\" \"$domain_name\" \"$chosen_cert_arn\" \
        $matched_rule_priority $request_creation_time ";
    let template = words::nginx(text).unwrap_or_default();
    LineTemplate { needed: 13, ..template }
});

impl LineTemplate {
    /// Adds a text behind the last place.
    fn literal(&mut self, text: &str) {
        self.tail.push_str(text);
    }

    /// Adds a place. `meaning` is `None` if no record has such a value.
    fn place(&mut self, spelling: &str, meaning: Option<LogPlace>) {
        // Where neither of the two is wanted, it does not matter where the first ends.
        let is_one = self.tail.is_empty() && meaning.is_none();
        match self.places.last_mut().filter(|last| is_one && last.meaning.is_none()) {
            Some(last) => last.spelling.push_str(spelling),
            None => {
                let (before, spelling) = (std::mem::take(&mut self.tail), spelling.to_owned());
                self.places.push(TemplatePlace { before, spelling, meaning });
            }
        }
    }

    /// Checks that a reader can tell where each value ends, and finds what every record needs.
    fn check(&self) -> Result<(), String> {
        let pairs = self.places.iter().zip(self.places.iter().skip(1));
        for (first, second) in pairs {
            if second.before.is_empty() && !second.begins_with_slash() {
                let (first, second) = (&first.spelling, &second.spelling);
                return Err(format!(
                    "nothing stands between `{first}` and `{second}`: a reader cannot tell where `{first}` ends"
                ));
            }
        }
        let has = |wanted: fn(LogField) -> bool| {
            let field = |place: &TemplatePlace| match place.meaning {
                Some(LogPlace::Field(field)) => wanted(field),
                _ => false,
            };
            self.places.iter().any(field)
        };
        let missing = |what, how| Err(format!("the template has no {what}: add {how}"));
        if !has(|field| matches!(field, LogField::Time(_))) {
            return missing("time", "`$time_local`, `$time_iso8601` or `$msec` (Apache: `%t`)");
        }
        let has_request = has(|field| field == LogField::Request);
        if !has_request && !has(|field| field == LogField::Method) {
            return missing("method", "`$request` or `$request_method` (Apache: `%r` or `%m`)");
        }
        if !has_request && !has(|field| matches!(field, LogField::Target | LogField::Path)) {
            return missing("path", "`$request` or `$request_uri` (Apache: `%r` or `%U%q`)");
        }
        Ok(())
    }

    /// Reads a line into the draft.
    pub(super) fn read<'l>(
        &'l self,
        line: &'l str,
        draft: &mut RecordDraft<'l>,
    ) -> Result<(), LineFault> {
        let no_match = LineFault::Broken("it is not in the expected format");
        let before = self.places.first().map_or("", |place| place.before.as_str());
        let mut rest = line.strip_prefix(before).ok_or(no_match)?;
        for (number, place) in self.places.iter().enumerate() {
            let next = self.places.get(number + 1);
            let end = match next {
                Some(next) => place.end(rest, &next.before),
                None if self.tail.is_empty() => Some(rest.len()),
                None => place.end(rest, &self.tail),
            };
            let Some(end) = end else {
                if number + 1 < self.needed {
                    return Err(no_match);
                }
                // The line may end here, or go on in another way. A quoted value without its end is cut off.
                if !place.is_quoted() {
                    let end = memchr::memchr(b' ', rest.as_bytes()).unwrap_or(rest.len());
                    place.set(&rest[..end], draft);
                } else if number + 1 == self.needed {
                    return Err(no_match);
                }
                return Ok(());
            };
            place.set(&rest[..end], draft);
            let skipped = next.map_or(0, |next| next.before.len());
            rest = &rest[end + skipped..];
        }
        Ok(())
    }
}

impl TemplatePlace {
    fn set<'l>(&'l self, text: &'l str, draft: &mut RecordDraft<'l>) {
        let value = || PlaceValue::Text(escape::undo(text));
        match &self.meaning {
            Some(LogPlace::Field(field)) => draft.set_field(*field, value()),
            Some(LogPlace::Header(name)) => draft.set_header(Cow::Borrowed(name), value()),
            None => {}
        }
    }

    fn is_quoted(&self) -> bool {
        self.before.ends_with('"')
    }

    /// Whether the value begins with `/`. Then it can be told from the value in front of it.
    fn begins_with_slash(&self) -> bool {
        matches!(self.meaning, Some(LogPlace::Field(LogField::Target | LogField::Path)))
    }

    /// Whether the value has no spaces.
    fn is_one_word(&self) -> bool {
        let Some(LogPlace::Field(field)) = &self.meaning else { return false };
        matches!(
            field,
            LogField::Status | LogField::Bytes | LogField::Duration(_) | LogField::PartialSeconds
        )
    }

    /// Where the value ends if it begins with `rest` and `behind` stands behind it.
    fn end(&self, rest: &str, behind: &str) -> Option<usize> {
        let bytes = rest.as_bytes();
        let Some((first, others)) = behind.as_bytes().split_first() else {
            return memchr::memchr(b'/', bytes);
        };
        // Two or three bytes are compared faster here than by a call.
        let mut places = memchr::memchr_iter(*first, bytes).filter(|at| {
            let found = &bytes[at + 1..];
            found.len() >= others.len()
                && found.iter().zip(others).all(|(found, other)| found == other)
                && !(*first == b'"' && escape::is_open(&bytes[..*at]))
        });
        let end = places.next()?;
        let fits = !self.is_one_word() || memchr::memchr(b' ', &bytes[..end]).is_none();
        fits.then_some(end)
    }
}

impl FromStr for LineTemplate {
    type Err = String;

    /// A template with `$` is nginx's, others are Apache's. The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        let template =
            if words::is_nginx(text) { words::nginx(text) } else { words::apache(text) }?;
        template.check()?;
        Ok(Self { needed: template.places.len(), ..template })
    }
}

#[cfg(test)]
mod tests;
