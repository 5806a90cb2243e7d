//! `tidegate init`.

use clap::Args;

use super::{CommandResult, ConfigFile, print, write_new};
use crate::config;

/// Write a proxy.toml to begin with. A file that is there is never overwritten.
#[derive(Args, Clone, Debug)]
pub(super) struct Init {
    #[command(flatten)]
    file: ConfigFile,
    /// The API that gets the requests
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000")]
    upstream: String,
}

pub(super) fn init(init: &Init) -> CommandResult {
    let (path, text) = (&init.file.config, sample(&init.upstream));
    let name = path.display();
    // The file is checked before it is written, because the user's URL may be wrong. As an override, the URL
    // is called `--upstream` in messages.
    let upstream = Some(init.upstream.clone());
    let overrides = config::Overrides { upstream, ..config::Overrides::default() };
    config::parse(&name.to_string(), &text, &|_| None, &overrides)?;
    write_new(path, &text)?;
    print(format_args!("wrote {name}; next: `tidegate run`, and change it while it runs"))
}

fn sample(upstream: &str) -> String {
    // A JSON string is a TOML string too.
    let upstream = serde_json::Value::from(upstream);
    format!(
        "[server]
listen = \"127.0.0.1:8080\"

[upstreams.api]
servers = [{upstream}]

[limits.per-client]
key = [\"ip\"]
rate = \"100/s\"

[[routes]]
path = \"/{{*rest}}\"
upstream = \"api\"
limits = [\"per-client\"]
"
    )
}
