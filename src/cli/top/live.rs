//! Shows the present figures in the terminal, until a key is pressed or a signal comes.
//!
//! A thread asks the endpoint each second. This thread waits for keys and for what the other one finds.
//!
//! crossterm alone is enough: it sets the terminal's mode, and reads keys and sizes. A library of widgets
//! would be larger than this command.

use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

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

/// The longest time that a change waits before it is shown.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// What the thread that asks has found.
enum News {
    Status(Value),
    History(Value),
    /// The endpoint does not answer, for this reason.
    Away(String),
    /// The command must end.
    End,
}

/// Shows the figures until the end. `status` is the first answer.
pub(super) fn watch(client: AdminClient, status: Value, colour: bool) -> CommandResult {
    let at = client.authority.clone();
    let (sender, news) = channel();
    // The thread ends with the process, or when this function has dropped `news`.
    thread::spawn(move || ask(&client, &sender));
    let failed = |error: io::Error| Failure::run(format!("cannot use the terminal: {error}"));
    let terminal = RawTerminal::enter().map_err(failed)?;
    let shown = show(&at, status, &news, colour);
    drop(terminal);
    shown.map_err(failed)
}

fn show(at: &str, mut status: Value, news: &Receiver<News>, colour: bool) -> io::Result<()> {
    let (mut trends, mut away) = (Trends::default(), None::<String>);
    loop {
        // A terminal that does not say its size says 0.
        let (width, height) = match size()? {
            (0, _) | (_, 0) => (80, 24),
            known => known,
        };
        let size = Size { width: width.into(), height: height.into() };
        let screen = Screen { at, status: &status, trends: &trends, away: away.as_deref() };
        draw(&screen.lines(size), size.height, colour)?;
        // Waits until there is something new to show.
        loop {
            if event::poll(KEY_WAIT)? {
                match event::read()? {
                    Event::Key(key) if ends(key) => return Ok(()),
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
            match news.try_recv() {
                Ok(News::Status(new)) => {
                    trends.add(&new);
                    (status, away) = (new, None);
                    break;
                }
                Ok(News::History(history)) => trends = Trends::of(&history),
                Ok(News::Away(why)) => {
                    away = Some(why);
                    break;
                }
                Ok(News::End) => return Ok(()),
                Err(_) => {}
            }
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
        // The line is cleared first. Behind a full line the cursor stands on its last character.
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

/// Asks the endpoint each second, until nobody wants the news.
fn ask(client: &AdminClient, news: &Sender<News>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        let _ = news.send(News::End);
        return;
    };
    runtime.block_on(async {
        tokio::select! {
            () = ended() => { let _ = news.send(News::End); }
            () = ask_each_second(client, news) => {}
        }
    });
}

async fn ask_each_second(client: &AdminClient, news: &Sender<News>) {
    if let Ok(history) = client.get_json("/api/history", PATIENCE).await {
        let _ = news.send(News::History(history));
    }
    let mut tick = every(PERIOD);
    loop {
        tick.tick().await;
        let found = match client.get_json("/api/status", PATIENCE).await {
            Ok(status) => News::Status(status),
            Err(failure) => News::Away(failure.message.unwrap_or_default()),
        };
        if news.send(found).is_err() {
            return;
        }
    }
}

/// Waits for a signal that ends the command. The terminal must be restored then, too.
async fn ended() {
    let (terminate, hangup) = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut hangup)) = (terminate, hangup) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
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
