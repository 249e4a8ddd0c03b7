//! Running other programs: quiet when they succeed, with all they said when they fail.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Runs to the end; its output is shown only in the error of a failure.
pub fn quiet(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs to the end; what it says goes to the terminal.
pub fn visible(command: &mut Command) -> Result<()> {
    let name = line(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// Runs to the end and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let name = line(command);
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{name}`"))?;
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        bail!("`{name}` failed ({})\n{out}{}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(out)
}

/// Runs to the end and returns its standard output; anything on standard error is a failure.
pub fn output_only(command: &mut Command) -> Result<String> {
    let name = line(command);
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{name}`"))?;
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() || !done.stderr.is_empty() {
        bail!("`{name}` said ({})\n{out}{}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(out)
}

/// The command as one would type it.
pub fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}
