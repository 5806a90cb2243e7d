//! The processes that share Redis, and what they tell each other. `script::announcement` announces this process and
//! carries its words; `admin` composes them.
//!
//! A process asks the others by a question in Redis, which each of them finds within half a second. Each writes its
//! answer under a key of its own, and the process that asked reads these keys. All keys expire within seconds.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// How long a process waits for the answers of the others.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The time between two looks for answers.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The most questions, and the most answers, that wait to be read.
const MOST: usize = 16;

/// A question of another process, or this process's answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FleetWord {
    /// The ID of the question.
    pub(crate) id: String,
    pub(crate) text: String,
}

/// What this process says of itself to the others, and what they ask.
#[derive(Debug)]
pub(crate) struct FleetWords {
    /// The versions of the configuration file and of the program, with a space between them.
    versions: Mutex<String>,
    asked: Channel,
    said: Channel,
}

/// A sender, and its receiver until somebody takes it.
type Channel = (Sender<FleetWord>, Mutex<Option<Receiver<FleetWord>>>);

/// A process whose lease in Redis runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FleetMember {
    /// The machine, the number of the process, and an ID.
    pub(super) id: String,
    /// The version of its configuration file. Empty for a program that does not say it.
    pub(crate) file: String,
    /// The version of its program. Empty for a program that does not say it.
    pub(crate) program: String,
}

/// What the other processes have answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FleetAnswers {
    pub(crate) answers: Vec<(FleetMember, String)>,
    /// The processes that have not answered in time, or cannot answer.
    pub(crate) silent: Vec<FleetMember>,
}

impl Default for FleetWords {
    fn default() -> Self {
        let new = || {
            let (sender, receiver) = channel(MOST);
            (sender, Mutex::new(Some(receiver)))
        };
        Self { versions: Mutex::default(), asked: new(), said: new() }
    }
}

impl FleetWords {
    pub(crate) fn set_versions(&self, file: &str, program: &str) {
        *self.versions.lock() = format!("{file} {program}");
    }

    pub(super) fn versions(&self) -> String {
        self.versions.lock().clone()
    }

    /// The questions of other processes. `None` if somebody reads them already.
    pub(crate) fn questions(&self) -> Option<Receiver<FleetWord>> {
        self.asked.1.lock().take()
    }

    pub(super) fn answers(&self) -> Option<Receiver<FleetWord>> {
        self.said.1.lock().take()
    }

    /// Another process asks this. If nobody reads the questions, this one is forgotten.
    pub(super) fn ask(&self, question: FleetWord) {
        _ = self.asked.0.try_send(question);
    }

    /// Answers a question. If Redis takes no answers, this one is forgotten.
    pub(crate) fn say(&self, answer: FleetWord) {
        _ = self.said.0.try_send(answer);
    }
}

impl FleetMember {
    /// A process that said these versions, or nothing.
    pub(super) fn new(id: String, versions: &str) -> Self {
        let (file, program) = versions.split_once(' ').unwrap_or_default();
        Self { id, file: file.to_owned(), program: program.to_owned() }
    }

    /// The machine, and the number of the process.
    pub(crate) fn name(&self) -> &str {
        self.id.split(' ').next().unwrap_or_default()
    }
}
