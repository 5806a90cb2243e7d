//! A replay's report as text, for a terminal.

use super::Report;
use super::parts::{ReportPart, ReportTable};
use super::words::printable;

/// The widest column of names. Longer names move the figures of their row to the right.
const NAME: usize = 44;

pub(crate) fn text(report: &Report<'_>) -> String {
    let (mut text, mut indent) = (String::new(), "");
    for part in report.parts() {
        match part {
            ReportPart::File(title) => {
                indent = "  ";
                text += &format!("\n{title}\n");
            }
            ReportPart::Section(title) => {
                indent = "    ";
                text += &format!("\n  {title}\n");
            }
            ReportPart::Note(said) | ReportPart::Sentence(said) | ReportPart::Example(said) => {
                text += &format!("{indent}{}\n", printable(&said));
            }
            // A terminal shows the tables alone.
            ReportPart::Plot(..) => {}
            ReportPart::Table(table) => write_table(&table, indent, &mut text),
        }
    }
    text
}

fn write_table(table: &ReportTable, indent: &str, text: &mut String) {
    let lines = || std::iter::once(&table.titles).chain(&table.rows);
    let width = |column: usize| {
        let cells = lines().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let name_width = width(0).min(NAME);
    for line in lines() {
        let Some((name, figures)) = line.split_first() else { continue };
        *text += &format!("{indent}{:<name_width$}", printable(name));
        for (column, figure) in (1..).zip(figures) {
            *text += &format!("  {figure:>0$}", width(column));
        }
        text.push('\n');
    }
}
