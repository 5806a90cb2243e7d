//! Checks the keys that have claims against the tables `[jwt.NAME]`.

use crate::config::assembly::Sections;
use crate::config::section::values::Names;
use crate::request::key::KeySource;

impl Sections<'_> {
    /// Reports claims in keys if the file has no `[jwt.NAME]`, a `plans.jwt` that is no table, and tables whose claims no
    /// key has.
    pub(super) fn claims(&self) {
        let mut is_read = false;
        for (_, part, span) in self.parts() {
            let alternatives = part.alternatives();
            let Some(claim) = alternatives.iter().find(|it| matches!(it, KeySource::Jwt(_))) else {
                continue;
            };
            is_read = true;
            if self.jwt.is_empty() {
                let title =
                    format!("`{claim}` is read from a token, and the file has no `[jwt.NAME]`");
                self.cx.error(span, title, "expected a table that says whose tokens are believed").help(
                    "add `[jwt.main]` with `keys = \"https://login.example.com/keys\"`, where the keys of \
                     the tokens' issuer are",
                );
            }
        }
        let tables = Names::new("jwt", self.jwt.iter().map(|table| table.name.as_str()));
        if let Some((name, span)) = self.plans.as_ref().and_then(|plans| plans.jwt.as_ref())
            && tables.index(name.as_str()).is_none()
        {
            let title = format!("there is no table `[jwt.{name}]`");
            self.cx.error(span, title, tables.instead(Some(name.as_str())));
        }
        if !is_read && !self.cx.has_errors() {
            for table in &self.jwt {
                let title = format!("nothing reads the tokens of `[jwt.{}]`", table.name);
                let expected =
                    "expected a part `jwt:CLAIM` in the `key` of a limit, or as `plans.by`";
                self.cx.warning(&table.span, title, expected);
            }
        }
    }
}
