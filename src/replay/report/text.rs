//! A replay's report as text, for a terminal.

use std::fmt::{self, Display};

use super::Report;
use super::parts::{ReportPart, ReportTable};
use super::words::printable;

/// The widest column of names. Longer names move the figures of their row to the right.
const NAME: usize = 44;

/// A report that is written as text.
pub(crate) struct TerminalReport<'r>(pub &'r Report<'r>);

impl Display for TerminalReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut indent = "";
        for part in self.0.parts() {
            match part {
                ReportPart::File(title) => {
                    indent = "  ";
                    writeln!(f, "\n{title}")?;
                }
                ReportPart::Section(title) => {
                    indent = "    ";
                    writeln!(f, "\n  {title}")?;
                }
                ReportPart::Note(text) | ReportPart::Sentence(text) | ReportPart::Example(text) => {
                    writeln!(f, "{indent}{}", printable(&text))?;
                }
                // A terminal shows the tables alone.
                ReportPart::Plot(..) => {}
                ReportPart::Table(table) => write_table(&table, indent, f)?,
            }
        }
        Ok(())
    }
}

fn write_table(table: &ReportTable, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let lines = || std::iter::once(&table.titles).chain(&table.rows);
    let width = |column: usize| {
        let cells = lines().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let name_width = width(0).min(NAME);
    for line in lines() {
        let Some((name, figures)) = line.split_first() else { continue };
        write!(f, "{indent}{:<name_width$}", printable(name))?;
        for (column, figure) in (1..).zip(figures) {
            write!(f, "  {figure:>0$}", width(column))?;
        }
        writeln!(f)?;
    }
    Ok(())
}
