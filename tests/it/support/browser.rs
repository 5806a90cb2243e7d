//! A headless Chromium that a test drives, by its debugging protocol over two pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::wait_until;

/// Killed when it is dropped.
pub(crate) struct Browser {
    process: Child,
    commands: File,
    answers: BufReader<File>,
    session: Value,
    /// Problems that the page told: exceptions, and what its policy forbids.
    pub(crate) complaints: Vec<String>,
    sent: u64,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Opens a page in a window of this size.
    pub(crate) fn open(url: &str, width: u32, height: u32) -> Self {
        let there = Command::new("chromium").arg("--version").output();
        assert!(there.is_ok(), "this test needs the program `chromium`");
        let folder = tempfile::tempdir().unwrap();
        let [commands, answers] = ["commands", "answers"].map(|name| folder.path().join(name));
        let made = Command::new("mkfifo").args([&commands, &answers]).status().unwrap();
        assert!(made.success());
        // The browser reads commands from descriptor 3 and writes answers to 4.
        let start = "exec chromium --headless=new --no-sandbox --disable-gpu \
                     --disable-dev-shm-usage --remote-debugging-pipe --user-data-dir=\"$3\" \
                     about:blank 3<\"$1\" 4>\"$2\"";
        let process = Command::new("sh")
            .args(["-c", start, "sh"])
            .args([&commands, &answers, &folder.path().join("profile")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let commands = OpenOptions::new().write(true).open(commands).unwrap();
        let answers = BufReader::new(File::open(answers).unwrap());
        let (session, complaints) = (Value::Null, Vec::new());
        let mut browser =
            Self { process, commands, answers, session, complaints, sent: 0, _folder: folder };
        let targets = browser.call("Target.getTargets", json!({}))["targetInfos"].take();
        let page = targets.as_array().unwrap().iter().find(|it| it["type"] == "page").unwrap();
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].take();
        browser.call("Runtime.enable", json!({}));
        browser.call("Log.enable", json!({}));
        browser.resize(width, height);
        browser.call("Page.navigate", json!({ "url": url }));
        browser
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Makes the page believe that the system has light or dark colours.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// From now on, `window.jumps` lists what moved in the page.
    pub(crate) fn watch_jumps(&mut self) {
        self.observe_jumps(false);
    }

    /// `window.jumps` lists what moved in the page since it was opened.
    pub(crate) fn list_jumps(&mut self) {
        self.observe_jumps(true);
    }

    fn observe_jumps(&mut self, since_open: bool) {
        self.js(&format!(
            "window.jumps = []; new PerformanceObserver((list) => {{ for (const one of list.getEntries()) \
             for (const {{ node, previousRect: from, currentRect: to }} of one.sources) window.jumps.push( \
             `${{(node?.outerHTML ?? node?.textContent ?? '').slice(0, 200)}}: ${{JSON.stringify([from, to])}}`); \
             }}).observe({{ type: 'layout-shift', buffered: {since_open} }})",
        ));
    }

    /// The value of an expression in the page.
    pub(crate) fn js(&mut self, expression: &str) -> Value {
        let ask = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let mut answer = self.call("Runtime.evaluate", ask);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// The text that people see of the first element that fits a selector.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.js(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until the text of an element fits, and returns it.
    pub(crate) fn wait(&mut self, selector: &str, fits: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        wait_until(&format!("{selector} says what it should"), || {
            text = self.text(selector);
            fits(&text)
        });
        text
    }

    /// Types a text into a field.
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        self.js(&format!(
            "(() => {{ const field = document.querySelector({selector:?}); field.value = {text:?}; \
             field.dispatchEvent(new Event('change')); }})()"
        ));
    }

    pub(crate) fn click(&mut self, selector: &str) {
        self.js(&format!("document.querySelector({selector:?}).click()"));
    }

    /// Sends a command and returns its result.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut command = json!({ "id": self.sent, "method": method, "params": parameters });
        if self.session.is_string() {
            command["sessionId"] = self.session.clone();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.answers.read_until(0, &mut bytes).unwrap();
            bytes.pop();
            let mut told: Value = serde_json::from_slice(&bytes).unwrap();
            if told["id"] == self.sent {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].take();
            }
            if matches!(told["method"].as_str(), Some("Runtime.exceptionThrown" | "Log.entryAdded"))
            {
                self.complaints.push(told["params"].to_string());
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
