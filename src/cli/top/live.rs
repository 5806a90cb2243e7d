//! Shows the present figures in the terminal, until a key is pressed or a signal comes.
//!
//! crossterm alone is enough: it sets the terminal's mode, and reads keys and sizes. A library of widgets
//! would be larger than this command.

use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::unbounded_channel;

use super::paint::{ScreenLine, styled};
use super::screen::{Screen, Size};
use super::trend::Trends;
use crate::cli::admin::AdminClient;
use crate::cli::{CommandResult, Failure};
use crate::clock::every;

/// The time between two questions.
const PERIOD: Duration = Duration::from_secs(1);
/// The timeout for a question.
const PATIENCE: Duration = Duration::from_secs(3);

/// Shows the figures until the end. `status` is the first answer.
pub(super) fn watch(
    client: &AdminClient,
    status: Value,
    trends: Trends,
    colour: bool,
) -> CommandResult {
    let failed = |error: io::Error| Failure::run(format!("cannot use the terminal: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let terminal = RawTerminal::enter().map_err(failed)?;
    let shown = runtime.block_on(show(client, status, trends, colour));
    // The lookup of a name may hold its thread for long.
    runtime.shutdown_background();
    drop(terminal);
    shown.map_err(failed)
}

async fn show(
    client: &AdminClient,
    mut status: Value,
    mut trends: Trends,
    colour: bool,
) -> io::Result<()> {
    let (sender, mut events) = unbounded_channel();
    // Reading a key blocks. This thread ends with the process.
    thread::spawn(move || while sender.send(event::read()).is_ok() {});
    // After these signals, `watch` must still restore the terminal.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (mut tick, mut away) = (every(PERIOD), None::<String>);
    loop {
        // A terminal with an unknown size has the size 0.
        let (width, height) = match size()? {
            (0, _) | (_, 0) => (80, 24),
            known => known,
        };
        let size = Size { width: width.into(), height: height.into() };
        let (at, away_for) = (client.authority.as_str(), away.as_deref());
        let screen = Screen { at, status: &status, trends: &trends, away: away_for };
        draw(&screen.lines(size), size.height, colour)?;
        let question = async {
            tick.tick().await;
            client.get_json("/api/status", PATIENCE).await
        };
        tokio::select! {
            answer = question => match answer {
                Ok(new) => {
                    trends.add(&new);
                    (status, away) = (new, None);
                }
                Err(failure) => away = Some(failure.message.unwrap_or_default()),
            },
            event = events.recv() => match event.transpose()? {
                Some(Event::Key(key)) if ends(key) => return Ok(()),
                Some(_) => {}
                None => return Ok(()),
            },
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let is_end = match key.code {
        KeyCode::Char('c' | 'd') => is_control,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        _ => false,
    };
    is_end && key.kind != KeyEventKind::Release
}

fn draw(lines: &[ScreenLine], height: usize, colour: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    queue!(out, BeginSynchronizedUpdate)?;
    for (row, line) in (0_u16..).zip(lines) {
        // The line is cleared first. After a full line the cursor is on its last character.
        queue!(out, cursor::MoveTo(0, row), Clear(ClearType::UntilNewLine))?;
        write!(out, "{}", styled(line, colour))?;
    }
    if lines.len() < height {
        let below = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        queue!(out, cursor::MoveTo(0, below), Clear(ClearType::FromCursorDown))?;
    }
    queue!(out, EndSynchronizedUpdate)?;
    out.flush()
}

/// The terminal in the mode that the figures need. Restored when this is dropped.
struct RawTerminal;

impl RawTerminal {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        let entered = Self;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(entered)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}
