//! `ckpt`: inspects and manages the checkpoints and the memory of agents.

mod arguments;
mod command;
mod failure;
mod open;
mod output;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::Failure::from(error).report(),
    };
    match runtime.block_on(command::run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
