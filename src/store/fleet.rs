//! The processes that share Redis, and what they tell each other. `script::announcement` announces this process and
//! carries its words; `admin` composes them.
//!
//! A process asks the others by a question in Redis, which each of them finds within half a second. Each writes its
//! answer under a key of its own, and the process that asked reads these keys. All keys expire within seconds.

use parking_lot::Mutex;
use tokio::sync::broadcast::Sender;

use crate::observe::start;

/// The most questions, and the most answers, that wait to be read. The oldest is forgotten for a newer one.
const MOST: usize = 32;

/// The most bytes of a name or version that another process says.
const LONGEST: usize = 256;

/// A question of another process, or this process's answer to it.
#[derive(Clone, Debug)]
pub(crate) struct FleetWord {
    /// The ID of the question.
    pub(crate) id: String,
    pub(crate) text: String,
}

/// What this process says of itself to the others, and what they ask.
#[derive(Debug)]
pub(crate) struct FleetWords {
    /// The version of its configuration file.
    pub(crate) file: Mutex<String>,
    /// The questions of other processes.
    pub(crate) asked: Sender<FleetWord>,
    /// The answers of this process.
    pub(crate) said: Sender<FleetWord>,
}

/// A process whose lease in Redis runs.
#[derive(Clone, Debug)]
pub(crate) struct FleetMember {
    /// The machine, the number of the process, and an ID.
    pub(super) id: String,
    /// The version of its configuration file. Empty for a program that does not say it.
    pub(crate) file: String,
    /// The version of its program. Empty for a program that does not say it. Such a program does not answer.
    pub(crate) program: String,
}

/// The other processes, each with its answer. `None` if a process has not answered in time, or cannot answer.
pub(crate) type FleetAnswers = Vec<(FleetMember, Option<Vec<u8>>)>;

impl Default for FleetWords {
    fn default() -> Self {
        Self { file: Mutex::default(), asked: Sender::new(MOST), said: Sender::new(MOST) }
    }
}

impl FleetMember {
    /// A process that said the versions of its file and of its program, with a space between them. Or it said nothing.
    pub(crate) fn new(id: String, versions: &str) -> Self {
        let (file, program) = versions.split_once(' ').unwrap_or_default();
        Self {
            id,
            file: start(file, LONGEST).to_owned(),
            program: start(program, LONGEST).to_owned(),
        }
    }

    /// The machine, and the number of the process.
    pub(crate) fn name(&self) -> &str {
        name_of(&self.id)
    }
}

/// The machine, and the number of the process with this ID.
pub(super) fn name_of(id: &str) -> &str {
    start(id.split(' ').next().unwrap_or_default(), LONGEST)
}
