//! Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write};

use crate::observe::metrics::Histogram;

/// The media type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of families, each with its samples.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    family: &'static str,
}

impl Page {
    /// Begins a family. The samples that follow belong to it. `kind` is a type of Prometheus: `counter`,
    /// `gauge` or `histogram`.
    pub(super) fn family(&mut self, kind: &str, name: &'static str, help: &str) {
        self.family = name;
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// A number of the family that was begun last.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: &dyn Display) {
        self.suffixed("", labels, value);
    }

    /// The only number of the family that was begun last.
    pub(super) fn number(&mut self, value: &dyn Display) {
        self.sample(&[], value);
    }

    /// A histogram of the family that was begun last.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        for (bound, count) in histogram.cumulative() {
            let bound = bound.to_string();
            self.suffixed("_bucket", &[labels, &[("le", &bound)]].concat(), &count);
        }
        self.suffixed("_bucket", &[labels, &[("le", "+Inf")]].concat(), &histogram.count());
        self.suffixed("_sum", labels, &histogram.sum());
        self.suffixed("_count", labels, &histogram.count());
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: &dyn Display) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        for (index, (name, label)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.escaped(label);
            self.text.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.line(format_args!("{close} {value}"));
    }

    fn escaped(&mut self, label: &str) {
        for character in label.chars() {
            match character {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.family("gauge", "a", "An a.");
        page.sample(&[("b", "x\\y\"z\n{ü}"), ("c", "")], &1.5);
        let expected = "# HELP a An a.\n# TYPE a gauge\na{b=\"x\\\\y\\\"z\\n{ü}\",c=\"\"} 1.5\n";
        assert_eq!(page.finish(), expected);
    }
}
