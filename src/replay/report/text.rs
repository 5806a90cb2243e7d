//! A replay's report as text, for a terminal.

use std::fmt::{self, Display};

use super::parts::{ReportPart, ReportTable};
use super::words::{bar, length, printable};
use super::{Report, float};
use crate::replay::timeline::{Slice, Timeline};

/// The columns of a plot.
const PLOT: usize = 60;

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
                ReportPart::Plot(timeline, is_of_all) => plots(timeline, is_of_all, indent, f)?,
                ReportPart::Table(table) => write_table(&table, indent, f)?,
            }
        }
        Ok(())
    }
}

/// Plots of what happened over the time of the log. A column is empty where nothing happened.
fn plots(
    timeline: &Timeline,
    is_of_all: bool,
    indent: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let each = timeline.slices.len().div_ceil(PLOT).max(1);
    let columns: Vec<_> = timeline.slices.chunks(each).map(Slice::sum).collect();
    let values = |of: fn(&Slice) -> u64| -> Vec<f64> {
        columns.iter().map(|column| float(of(column))).collect()
    };
    let rows = [
        ("requests", values(|slice| slice.requests)),
        ("rejected", values(|slice| slice.rejected)),
        ("held", values(|slice| slice.delayed)),
    ];
    for (what, values) in rows.iter().skip(usize::from(!is_of_all)) {
        let most = values.iter().copied().fold(0.0, f64::max);
        if most > 0.0 {
            let bars: String = values.iter().map(|value| bar(*value, most)).collect();
            writeln!(f, "{indent}{what:<9} {bars}")?;
        }
    }
    let each = each as u64 * timeline.width / 1_000;
    writeln!(f, "{indent}{:<9} one column is {}", "", length(each))
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
